#include "zeroshard/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "base/check.h"
#include "comm/comm.h"
#include "device/missing_memory.h"
#include "train/batch.h"
#include "train/models/models.h"
#include "train/sampler.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

// Runs a model whose blocks are distributed over the ranks. Each rank has a range of consecutive blocks, and the ranges
// are of nearly equal size. The first rank also has all parts before the blocks, and the last rank all parts after
// them. The result of each such part is broadcast to all ranks, and so is the result of the last block in each range.
class PipelineRunner final : public PartRunner {
 public:
  PipelineRunner(Comm& comm, at::Device device, int64_t num_blocks)
      : comm_(comm), device_(device), num_blocks_(num_blocks) {}

  int owner(int64_t block) const { return static_cast<int>(block * comm_.world_size() / num_blocks_); }

  at::Tensor run(const torch::nn::Module&, const at::Tensor& input, const Forward& forward) const override {
    // The parts before the blocks have ids or positions as their input, which are integers.
    const int rank = input.is_floating_point() ? comm_.world_size() - 1 : 0;
    return run_on(rank, /*share=*/true, input, forward);
  }
  at::Tensor run_block(int64_t index, const torch::nn::Module&, const at::Tensor& input,
                       const Forward& forward) const override {
    const bool last = index + 1 == num_blocks_ || owner(index + 1) != owner(index);
    return run_on(owner(index), last, input, forward);
  }

 private:
  // Calls `forward` on rank `rank` alone. With `share`, returns the result of `forward` on all ranks. Without `share`,
  // returns the result on that rank, and the input unchanged on the other ranks.
  at::Tensor run_on(int rank, bool share, const at::Tensor& input, const Forward& forward) const {
    at::Tensor output = comm_.rank() == rank ? forward(input).contiguous() : input;
    return share && comm_.world_size() > 1 ? shared(output, rank) : output;
  }

  at::Tensor shared(const at::Tensor& value, int rank) const {
    Shape shape{};
    if (comm_.rank() == rank) {
      shape[0] = value.dim();
      std::copy(value.sizes().begin(), value.sizes().end(), shape.begin() + 2);
      shape[1] = static_cast<int64_t>(value.scalar_type());
    }
    comm_.host().broadcast({shape.data(), static_cast<int64_t>(shape.size()), DType::kOther8}, rank, "shape")->wait();
    const at::IntArrayRef sizes(shape.data() + 2, static_cast<size_t>(shape[0]));
    const auto dtype = static_cast<at::ScalarType>(shape[1]);
    at::Tensor all = comm_.rank() == rank ? value : at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_));
    comm_.broadcast({all.data_ptr(), static_cast<int64_t>(all.nbytes()), DType::kOther1}, rank, "hidden")->wait();
    return all;
  }

  using Shape = std::array<int64_t, 8>;
  Comm& comm_;
  at::Device device_;
  int64_t num_blocks_;
};

// Runs no part of a model, but collects the parts in three lists: the parts before the blocks, the blocks, and the
// parts after the blocks.
class PartFinder final : public PartRunner {
 public:
  at::Tensor run(const torch::nn::Module& part, const at::Tensor& input, const Forward&) const override {
    (input.is_floating_point() ? after : before).push_back(&part);
    return input.is_floating_point() ? input : at::empty({1, 1, 1}, at::kFloat);
  }
  at::Tensor run_block(int64_t, const torch::nn::Module& part, const at::Tensor& input, const Forward&) const override {
    blocks.push_back(&part);
    return input;
  }

  mutable std::vector<const torch::nn::Module*> before, blocks, after;
};

// Returns the first `options.vocab_size` of the logits, or all logits if that option is 0. Sets the logits of tokens
// that must never be chosen to -infinity, in `logits` itself.
at::Tensor choices_of(const at::Tensor& logits, const GenerateOptions& options) {
  const int64_t all = logits.numel(), ids = options.vocab_size > 0 ? std::min(options.vocab_size, all) : all;
  float* const values = logits.data_ptr<float>();
  for (const int32_t id : options.never)
    if (id >= 0 && id < ids) values[id] = -std::numeric_limits<float>::infinity();
  return logits.narrow(0, 0, ids);
}

}  // namespace

struct Generator::Impl {
  Impl(const std::string& directory_, World& world_, const std::string& dtype_name)
      : directory(directory_), world(world_), model(make_causal_lm_of(directory_)) {
    ZS_CHECK(dtype_name == "F32" || dtype_name == "BF16", "dtype is ", dtype_name, "; it must be F32 or BF16");
    dtype = dtype_name == "BF16" ? at::kBFloat16 : at::kFloat;
    model->eval();
    const PartFinder parts = find_parts();
    runner =
        std::make_unique<PipelineRunner>(world.gather(), world.device(), static_cast<int64_t>(parts.blocks.size()));
    load(parts, stored_values(*model, directory));
  }

  PartFinder find_parts() const {
    const at::NoGradGuard no_grad;
    PartFinder parts;
    model->logits(batch_of({0}, at::kCPU), parts);
    return parts;
  }

  // Loads the values of the parameters that this rank's parts use. The other parameters stay without memory.
  void load(const PartFinder& parts, const ParameterValues& values) {
    const at::NoGradGuard no_grad;
    std::set<const void*> mine;
    const auto add = [&](const torch::nn::Module& part) {
      for (const at::Tensor& parameter : part.parameters()) mine.insert(parameter.unsafeGetTensorImpl());
    };
    if (world.rank() == 0) std::for_each(parts.before.begin(), parts.before.end(), [&](auto* part) { add(*part); });
    for (size_t i = 0; i < parts.blocks.size(); ++i)
      if (runner->owner(static_cast<int64_t>(i)) == world.rank()) add(*parts.blocks[i]);
    if (world.rank() + 1 == world.world_size())
      std::for_each(parts.after.begin(), parts.after.end(), [&](auto* part) { add(*part); });
    for (auto& item : model->named_parameters()) {
      at::Tensor& parameter = item.value();
      // Skips a parameter of another rank, and a tied parameter that is already loaded.
      if (mine.erase(parameter.unsafeGetTensorImpl()) == 0) continue;
      const auto fill = [&] {
        at::Tensor whole = at::empty(parameter.sizes(), at::TensorOptions().dtype(dtype).device(world.device()));
        read(values, item.key(), whole.view({-1}));
        parameter.set_requires_grad(false);
        parameter.set_data(whole);
      };
      tell_missing_memory(fill, [&] { return missing_for(item.key(), parameter); });
      bytes += static_cast<int64_t>(parameter.nbytes());
    }
  }

  // Reads the values of parameter `name` into `to`. If `to` is not fp32 on the CPU, reads them into fp32 memory of the
  // host, piece by piece, and copies each piece to `to`.
  static void read(const ParameterValues& values, const std::string& name, const at::Tensor& to) {
    constexpr int64_t kPieceNumel = int64_t{1} << 20;
    if (to.is_cpu() && to.scalar_type() == at::kFloat) return values.read(name, 0, to.numel(), to.data_ptr<float>());
    const at::Tensor piece = at::empty({std::min(kPieceNumel, to.numel())}, at::kFloat);
    for (int64_t begin = 0; begin < to.numel(); begin += kPieceNumel) {
      const int64_t numel = std::min(kPieceNumel, to.numel() - begin);
      values.read(name, begin, begin + numel, piece.data_ptr<float>());
      to.narrow(0, begin, numel).copy_(piece.narrow(0, 0, numel));
    }
  }

  // Throws Error if the greatest logit is not finite, where a NaN counts as the greatest. No token can be chosen by its
  // logit then. The reason is normally a NaN or an infinity in a weight, which makes every logit NaN.
  void check_finite(const at::Tensor& logits, size_t position) const {
    if (std::isfinite(logits.max().item<float>())) return;
    std::string found = "look for inf or NaN in its weights";
    for (const auto& item : model->named_parameters()) {
      const at::Tensor& parameter = item.value();
      // parameters of other ranks have no memory on this rank
      const bool here = parameter.unsafeGetTensorImpl()->storage_initialized();
      if (here && !parameter.isfinite().all().item<bool>()) {
        found = concat("parameter '", item.key(), "' has inf or NaN");
        break;
      }
    }
    throw Error(concat("the model in '", directory, "' gives no finite logits for token ", position, ": ", found,
                       ". Use an earlier checkpoint, from before inf or NaN came into the weights"));
  }

  // Returns the logits of the next token: fp32, [vocabulary], on the host, because the host chooses tokens.
  at::Tensor next_logits(const std::vector<int32_t>& ids, KvCache& cache) {
    const TokenBatch batch = batch_of(ids, world.device());
    return model->logits(batch, *runner, &cache).select(1, -1).flatten().to(at::kCPU, at::kFloat).contiguous();
  }

  std::string directory;
  World& world;
  std::shared_ptr<CausalLM> model;
  at::ScalarType dtype = at::kFloat;
  std::unique_ptr<PipelineRunner> runner;
  int64_t bytes = 0;
};

Generator::Generator(const std::string& directory, World& world, const std::string& dtype)
    : impl_(std::make_unique<Impl>(directory, world, dtype)) {}

Generator::~Generator() = default;

int64_t Generator::max_length() const {
  return impl_->model->max_length();
}

int64_t Generator::parameter_bytes() const {
  return impl_->bytes;
}

std::vector<int32_t> Generator::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                         const std::function<void(int32_t)>& on_token) {
  Sampler sampler(options.sampling);
  ZS_CHECK(!prompt.empty(), "the prompt has no tokens: a text needs something to begin with");
  ZS_CHECK(options.max_tokens >= 0, "max_tokens is ", options.max_tokens, "; it must be at least 0");
  ZS_CHECK(options.vocab_size >= 0, "vocab_size is ", options.vocab_size, "; it must be at least 0");
  const auto given = static_cast<int64_t>(prompt.size());
  ZS_CHECK(options.max_tokens <= max_length() - given, "a prompt of ", given, " tokens and ", options.max_tokens,
           " more were asked for, but the model has ", max_length(), " positions: ask for fewer");
  const at::NoGradGuard no_grad;
  KvCache cache(given + options.max_tokens);
  std::vector<int32_t> text, ids = prompt;
  while (static_cast<int64_t>(text.size()) < options.max_tokens) {
    const at::Tensor logits = impl_->next_logits(ids, cache);
    impl_->check_finite(logits, prompt.size() + text.size());
    const int32_t token = sampler.choose(choices_of(logits, options));
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    text.push_back(token);
    if (on_token) on_token(token);
    ids = {token};
  }
  return text;
}

}  // namespace zeroshard
