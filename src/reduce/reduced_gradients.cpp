#include "reduce/reduced_gradients.h"

#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "device/cut.h"
#include "device/dtype.h"
#include "device/math.h"

namespace zeroshard {

ReducedGradients::ReducedGradients(const FlatGroup& group, bool are_whole, const ReduceOptions& options,
                                   std::unique_ptr<Array> values)
    : group_(group),
      options_(options),
      are_whole_(are_whole),
      values_(std::move(values)),
      hold_(std::make_unique<WriteHold>(options.while_read)) {
  if (options.exit) number_ = options.exit->add_bucket();
}

Array& ReducedGradients::values() const {
  if (arrived_) arrived_->synchronize();
  arrived_.reset();
  return *values_;
}

at::Tensor ReducedGradients::tensor() const {
  const StateTensors* const memory = values().in_memory();
  return memory != nullptr ? memory->at(0) : at::Tensor();
}

Range ReducedGradients::mine() const {
  return are_whole_ ? group_.layout.part(options_.rank) : Range{0, group_.layout.part_numel()};
}

Range ReducedGradients::owned(size_t index) const {
  const Range mine = group_.layout.part(options_.rank), owned = group_.layout.owned(index, options_.rank);
  return owned.size() > 0 ? owned - mine.begin : Range{};
}

at::Tensor ReducedGradients::part() const {
  return values().view(mine());
}

at::Tensor ReducedGradients::begin_sum() {
  return options_.exit ? options_.exit->begin(*values_, are_current_) : kept_;
}

void ReducedGradients::add(std::span<const void* const> pieces, DType dtype, const at::Tensor& elsewhere) {
  squares_ = ExactSum();
  const Range mine = this->mine();
  const auto sum = [&](Range part, const at::Tensor& out) {
    std::vector<const void*> parts;
    for (const void* const piece : pieces)
      parts.push_back(static_cast<const char*>(piece) + (part.begin - mine.begin) * element_size(dtype));
    math::sum_in_order(parts, to_scalar_type(dtype), options_.sum_scale, out, are_current_, squares_here());
  };
  if (elsewhere.defined()) {
    sum(mine, elsewhere);
  } else {
    values_->lend(mine, are_current_ ? Array::Access::kModify : Array::Access::kOverwrite, sum);
  }
  if (kept_.defined()) {
    part().copy_(kept_);
    outlive_current_stream(std::exchange(kept_, at::Tensor()));
  }
  if (options_.exit) end_exit();
  are_current_ = true;
}

void ReducedGradients::end_exit() {
  hold_->await_readers();
  arrived_ = options_.exit->end(*values_, number_);
}

void ReducedGradients::replace(size_t index, const at::Tensor& values) {
  const Range here = owned(index);
  if (options_.exit) {
    const at::Tensor own = options_.exit->begin(*values_, /*has_values=*/true);
    if (here.size() > 0) cut(own, here).copy_(values);
    return end_exit();
  }
  const Range at = here + mine().begin;
  this->values().lend(at, Array::Access::kModify,
                      [&](Range part, const at::Tensor& to) { to.copy_(cut(values, part - at.begin)); });
  squares_ = ExactSum();
  ExactSum* const squares = squares_here();
  if (squares == nullptr) return;
  values_->lend(mine(), Array::Access::kRead,
                [&](Range, const at::Tensor& grads) { math::add_sum_of_squares(grads, *squares); });
}

bool ReducedGradients::zero_under_way(size_t index) {
  if (!options_.device.is_cpu() || !values_->in_memory()) return false;
  const Range here = owned(index);
  const at::Tensor sum = kept_.defined() ? kept_ : part();
  if (here.size() > 0) cut(sum, here).zero_();
  return true;
}

}  // namespace zeroshard
