#include "unit/coded_refresh.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/round.h>

#include <algorithm>
#include <utility>

#include "device/cut.h"

namespace zeroshard {
namespace {

constexpr int64_t kConvertedNumel = 256 * kScaledNumel;  // elements that are encoded or decoded at a time
constexpr int kMost = 127;

// The codes of one part of a shard. In memory, the part's scales follow its numbers.
struct CodedPart {
  at::Tensor numbers, scales;

  CodedPart(const Span& codes, int parts, int part, int64_t numel, at::Device device) {
    char* const data = static_cast<char*>(codes.data) + codes.bytes() / parts * part;
    numbers = view_memory(data, numel, at::kChar, device).view({-1, kScaledNumel});
    scales = view_memory(data + numel, numel / kScaledNumel, at::kFloat, device).view({-1, 1});
  }
};

// Calls `convert(values, numbers, scales)` for consecutive pieces of at most kConvertedNumel elements of a part. Each
// argument has one row per block.
template <typename Convert>
void for_each_piece(const at::Tensor& part, const CodedPart& coded, const Convert& convert) {
  const at::Tensor rows = part.view({-1, kScaledNumel});
  for (int64_t begin = 0; begin < rows.size(0); begin += kConvertedNumel / kScaledNumel) {
    const Range piece{begin, std::min(begin + kConvertedNumel / kScaledNumel, rows.size(0))};
    convert(cut(rows, piece), cut(coded.numbers, piece), cut(coded.scales, piece));
  }
}

void encode(const at::Tensor& part, const CodedPart& to) {
  for_each_piece(part, to, [](const at::Tensor& values, const at::Tensor& numbers, const at::Tensor& scales) {
    constexpr double kLeast = 1e-35;  // so that 127 / largest is finite
    const at::Tensor wide = values.to(at::kFloat), largest = wide.abs().amax({1}, /*keepdim=*/true);
    scales.copy_(largest.div(kMost));
    // If an element of a block is not finite, the scale is not finite either, and all numbers are 0. Then 0 times the
    // scale is NaN, so all ranks decode the whole block as NaN.
    numbers.copy_(wide.mul(largest.clamp_min(kLeast).reciprocal().mul_(kMost)).round_().nan_to_num_(0, 0, 0));
  });
}

void decode(const CodedPart& from, const at::Tensor& part) {
  for_each_piece(part, from, [](const at::Tensor& values, const at::Tensor& numbers, const at::Tensor& scales) {
    values.copy_(numbers.to(at::kFloat).mul_(scales));
  });
}

at::Tensor part_of(const at::Tensor& shard, int parts, int part) {
  const int64_t numel = shard.numel() / parts;
  return cut(shard, {part * numel, (part + 1) * numel});
}

}  // namespace

CodedRefresh::CodedRefresh(Comm& parts, const RingClass& buffers, at::Device device, Ledger& ledger) : parts_(parts) {
  for (int i = 0; i < buffers.slots; ++i)
    slots_.push_back({FlatBuffer(parts, buffers.slot_bytes, device, ledger, Category::kGatherRing, "codes of parts")});
}

Span CodedRefresh::codes_of(const Slot& slot, size_t index) const {
  const auto bytes_of = [&](size_t i) {
    return replica_sum_bytes(slot.shards[i].numel(), parts_.world_size(), /*is_coded=*/true);
  };
  char* data = slot.memory.data();
  for (size_t i = 0; i < index; ++i) data += bytes_of(i);
  return {data, bytes_of(index), DType::kOther1};
}

void CodedRefresh::begin(std::vector<at::Tensor> shards, std::string_view tag) {
  const at::NoGradGuard no_grad;
  Slot& slot = slots_[begun_++ % slots_.size()];
  for (const auto& work : std::exchange(slot.works, {})) work->drain();
  slot.shards = std::move(shards);
  const int parts = parts_.world_size(), mine = parts_.rank();
  for (size_t i = 0; i < slot.shards.size(); ++i) {
    const at::Tensor part = part_of(slot.shards[i], parts, mine);
    const Span codes = codes_of(slot, i);
    encode(part, CodedPart(codes, parts, mine, part.numel(), slot.memory.device()));
    const int64_t bytes = codes.numel / parts;
    slot.works.push_back(
        parts_.all_gather(codes, {static_cast<char*>(codes.data) + bytes * mine, bytes, codes.dtype}, tag));
  }
}

void CodedRefresh::finish() {
  const at::NoGradGuard no_grad;
  Slot& slot = slots_[finished_++ % slots_.size()];
  const int parts = parts_.world_size();
  for (size_t i = 0; i < slot.shards.size(); ++i) {
    slot.works[i]->wait();
    const Span codes = codes_of(slot, i);
    for (int part = 0; part < parts; ++part) {
      const at::Tensor values = part_of(slot.shards[i], parts, part);
      decode(CodedPart(codes, parts, part, values.numel(), slot.memory.device()), values);
    }
  }
  slot.shards.clear();
}

}  // namespace zeroshard
