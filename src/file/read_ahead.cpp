#include "file/read_ahead.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

int64_t first_aligned(const ReadAhead::Stretch& stretch) {
  return stretch.offset / kDirectAlignment * kDirectAlignment;
}

int64_t end_aligned(const ReadAhead::Stretch& stretch) {
  return align_up(stretch.offset + stretch.bytes, kDirectAlignment);
}

}  // namespace

ReadAhead::ReadAhead(const Directory& directory, std::vector<Stretch> stretches)
    : directory_(directory), stretches_(std::move(stretches)) {
  for (const Stretch& each : stretches_) capacity_ = std::max(capacity_, end_aligned(each) - first_aligned(each));
}

std::span<const std::byte> ReadAhead::next() {
  ZS_ASSERT(taken_ < stretches_.size(), "more stretches are asked for than were announced");
  if (taken_ == 0) {
    fetch(0);
  } else {
    background_.wait();
  }
  Slot& slot = slots_[taken_++ % 2];
  if (taken_ < stretches_.size()) background_.start([this, index = taken_] { fetch(index); });
  if (slot.error) std::rethrow_exception(std::exchange(slot.error, nullptr));
  return slot.bytes;
}

void ReadAhead::fetch(size_t index) noexcept {
  Slot& slot = slots_[index % 2];
  try {
    read(stretches_[index], slot);
  } catch (...) {
    slot.error = std::current_exception();
  }
}

void ReadAhead::read(const Stretch& stretch, Slot& slot) {
  if (open_name_ != stretch.file) open(stretch.file);
  if (!slot.memory) slot.memory = allocate_direct(capacity_);
  const int64_t begin = first_aligned(stretch), skipped = stretch.offset - begin;
  read_at_least(directory_.io(), fd_.get(), directory_.path_of(open_name_), slot.memory.get(), skipped + stretch.bytes,
                end_aligned(stretch) - begin, begin, direct_);
  slot.bytes = {slot.memory.get() + skipped, size_t(stretch.bytes)};
}

void ReadAhead::open(std::string_view name) {
  Io& io = directory_.io();
  open_name_.clear();
  fd_ = directory_.open_file(std::string(name));
  open_name_ = name;
  direct_ = retry_interrupted([&] { return io.set_direct(fd_.get(), true); }) == 0;
  if (!direct_) io.advise_sequential(fd_.get());  // the system can refuse this advice
}

}  // namespace zeroshard
