#include "optim/delayed_update.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "device/cut.h"

namespace zeroshard {

DelayedUpdate::DelayedUpdate(std::span<ShardedGroup* const> groups, const ShardedOptimizer& optimizer,
                             at::Device device, bool pin, Ledger& ledger, std::function<void()> while_waiting)
    : optimizer_(optimizer), mover_(device), while_waiting_(std::move(while_waiting)) {
  int64_t bytes = 0;
  for (const ShardedGroup* const group : groups) bytes += group->updated().size() * element_size(group->flat().dtype);
  if (bytes > 0) memory_ = FlatBuffer::on_host(bytes, device, pin, ledger, Category::kPinned);
  Carver carver(memory_);
  for (const ShardedGroup* const group : groups)
    pending_.push_back({carver.take(group->flat().dtype, group->updated().size()), {}, std::nullopt});
}

void DelayedUpdate::begin(Inputs inputs) {
  ZS_ASSERT(!is_pending_, "an update is not published");
  for (const Inputs::Part& part : inputs.parts)
    pending_.at(part.group->number()).runs = ShardedOptimizer::count_step(*part.group, part.has_grad);
  is_pending_ = true;
  thread_.start([this, own = std::make_shared<Inputs>(std::move(inputs))] { run(*own); });
}

void DelayedUpdate::run(Inputs& inputs) {
  thread_id_ = std::this_thread::get_id();
  const std::unique_ptr<DelayedUpdate, void (*)(DelayedUpdate*)> on_thread(
      this, [](DelayedUpdate* update) { update->thread_id_ = std::thread::id(); });
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard guard(mover_.device());
  for (const Inputs::Part& part : inputs.parts)
    for (const Run& each : pending_[part.group->number()].runs) part.group->states().will_need(each.range);
  for (Inputs::Part& part : inputs.parts) {
    if (ends_) return;
    Pending& own = pending_[part.group->number()];
    if (own.sent) own.sent->synchronize();
    own.sent.reset();
    optimizer_.update_beside(*part.group, part.grads, own.runs, inputs.options, inputs.grad_scale, own.values);
    part.reading.reset();
  }
}

void DelayedUpdate::copy_to_device(ShardedGroup& group) {
  Pending& own = pending_.at(group.number());
  if (own.runs.empty()) return;
  const at::Tensor to = group.updated_parameters();
  mover_.follow();  // the copies wait for work of the current stream that still reads the old parameters
  for (const auto& run : std::exchange(own.runs, {})) mover_.move(cut(to, run.range), cut(own.values, run.range));
  own.sent = mover_.record();
  group.written_until(mover_.record());
}

void DelayedUpdate::replace(const ShardedGroup& group, Range positions, const at::Tensor& values) {
  const Range updated = group.updated(), both = intersect(positions, updated);
  if (both.size() == 0) return;
  Pending& own = pending_.at(group.number());
  if (own.sent) own.sent->synchronize();
  cut(own.values, both - updated.begin).copy_(cut(values, both - positions.begin));
}

}  // namespace zeroshard
