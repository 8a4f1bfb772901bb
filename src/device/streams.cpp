#include "device/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "device/current_device.h"

namespace zeroshard {
namespace {

c10::Stream current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  return impl.getStream(device.has_index() ? device : impl.getDevice());
}

}  // namespace

StreamUses::Use* StreamUses::find(c10::Stream stream) {
  const auto found = std::find_if(uses_.begin(), uses_.end(), [&](const Use& use) { return use.stream == stream; });
  return found == uses_.end() ? nullptr : &*found;
}

void StreamUses::share() {
  if (device_.is_cpu()) return;
  const c10::Stream current = current_stream(device_);
  Use* const use = find(current);
  use == nullptr ? add(current) : void(use->has_ended = false);
}

void StreamUses::add(c10::Stream stream) {
  if (spare_.empty()) spare_.emplace_back(stream.device_type());
  uses_.push_back({stream, std::move(spare_.back())});
  spare_.pop_back();
}

void StreamUses::end(Use& use) {
  if (!std::exchange(use.has_ended, true)) use.event.record(use.stream);
}

void StreamUses::end() {
  if (device_.is_cpu()) return;
  for (Use& use : uses_) end(use);
}

void StreamUses::take() {
  if (device_.is_cpu()) return;
  const c10::Stream current = current_stream(device_);
  for (Use& use : uses_) {
    if (use.stream != current) {
      end(use);
      use.event.block(current);
    }
    spare_.push_back(std::move(use.event));
  }
  uses_.clear();
  add(current);
}

std::vector<c10::Stream> StreamUses::streams() const {
  std::vector<c10::Stream> streams;
  for (const Use& use : uses_) streams.push_back(use.stream);
  return streams;
}

void current_stream_waits(c10::Event& event, c10::Device device) {
  event.block(current_stream(device));
}

void outlive_current_stream(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) tensor.record_stream(current_stream(tensor.device()));
}

void free_after_current_stream(at::Tensor tensor) noexcept {
  try {
    if (tensor.defined()) outlive_current_stream(tensor);
  } catch (const std::exception&) {  // the device has failed, so it does no more work
  }
}

SideStream::SideStream(c10::Device device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(with_index(device));
  event_.emplace(device.type());
}

SideStream::~SideStream() {
  try {
    join();
  } catch (const std::exception&) {  // the device has failed, so it does no more work
  }
}

void SideStream::join() const {
  if (!stream_) return;
  event_->record(*stream_);
  event_->block(current_stream(stream_->device()));
}

void SideStream::follow() const {
  if (!stream_) return;
  event_->record(current_stream(stream_->device()));
  event_->block(*stream_);
}

c10::Event SideStream::record() const {
  c10::Event event(stream_->device_type());
  event.record(*stream_);
  return event;
}

}  // namespace zeroshard
