#include "engine/ranks.h"

#include "base/check.h"
#include "base/interrupt.h"
#include "zeroshard/error.h"

namespace zeroshard {

void Ranks::check_caller() const {
  if (!process.is_own()) throw StateError(process.refusal(reduce.rank(), "engine"));
  if (in_interrupt_check())
    throw StateError(
        "a signal handler called the engine while the engine waits for other ranks or for a checkpoint. Let the "
        "handler only set a flag or call request_stop(), and act on the signal between steps");
  if (device.is_cpu()) return;
  gather.check();  // the thread that watches the device may have noticed that a rank is gone
  reduce.check();
}

void Ranks::check_while_waiting(std::string_view waited) const {
  reduce.check();  // another rank may have failed
  try {
    check_interrupt();
  } catch (const std::exception&) {  // the other ranks wait for this one
    fail_all(concat("rank ", reduce.rank(), " was interrupted while ", waited));
    throw;
  }
}

void Ranks::fail_all(const std::string& text) const noexcept {
  reduce.abort(text);
  gather.abort(text);
}

Comm& Ranks::checkpoint() const {
  if (checkpoint_or_null == nullptr) throw StateError("this engine was made without a communicator for checkpoints");
  return *checkpoint_or_null;
}

}  // namespace zeroshard
