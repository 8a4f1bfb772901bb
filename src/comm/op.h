#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/format.h"
#include "zeroshard/dtype.h"

namespace zeroshard {

enum class OpKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kExchange,
  kAllocate,
  kAllToAllV,
};
constexpr int kOpKinds = 9;

constexpr std::string_view name_of(OpKind kind) {
  constexpr std::string_view kNames[] = {"all_gather", "reduce_scatter", "all_to_all", "all_reduce",  "broadcast",
                                         "barrier",    "exchange",       "allocate",   "all_to_all_v"};
  return kNames[static_cast<size_t>(kind)];
}

// Says where an input lies in a peer's memory. Over shared memory, `segment` is the id of a segment, and `offset` is
// the position in it in bytes. Between threads, `offset` is the address.
struct PeerAddress {
  uint64_t segment = 0;
  uint64_t offset = 0;
};

// One collective as a rank called it. Ranks must agree on the fields before `input`. An Op is trivially copyable,
// because other processes read it from shared memory.
struct Op {
  static constexpr size_t kTagSize = 64;

  uint64_t seq = 0;  // number of the collective, counted from 1 in each communicator
  int64_t numel = 0;
  int32_t argument = 0;  // the root, the ReduceOp, or the hash of kAllToAllV's counts
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kOther1;
  uint8_t unused[2] = {0, 0};
  char tag[kTagSize] = {};  // zero-terminated, cut to 63 characters

  PeerAddress input;
  uint64_t inode = 0;  // kAllocate: identifies the file of the owner's descriptor `fd`
  int64_t fd = -1;

  Op() = default;
  Op(OpKind kind_, int64_t numel_, DType dtype_, std::string_view tag_, int32_t argument_ = 0)
      : numel(numel_), argument(argument_), kind(kind_), dtype(dtype_) {
    std::memcpy(tag, tag_.data(), tag_.size() < kTagSize ? tag_.size() : kTagSize - 1);
  }

  bool matches(const Op& other) const {
    return seq == other.seq && numel == other.numel && argument == other.argument && kind == other.kind &&
           dtype == other.dtype && std::memcmp(tag, other.tag, kTagSize) == 0;
  }

  // Returns a text like "all_gather('model.layers.3', 4096 bytes fp32)".
  std::string text() const {
    std::string result = concat(name_of(kind), "('", std::string_view(tag, ::strnlen(tag, kTagSize)), "'");
    if (kind != OpKind::kBarrier) result += concat(", ", numel * element_size(dtype), " bytes ", name_of(dtype));
    if (kind == OpKind::kBroadcast) result += concat(", root ", argument);
    if (kind == OpKind::kAllToAllV) result += concat(" in all, counts #", uint32_t(argument));
    if (kind == OpKind::kAllReduce) result += argument == 0 ? ", sum" : ", max";
    return result + ")";
  }
};

}  // namespace zeroshard
