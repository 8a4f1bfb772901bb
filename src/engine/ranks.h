#pragma once
#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "base/process_mark.h"
#include "comm/comm.h"

namespace zeroshard {

// The communicators of an engine, which outlive it, and the process that may use them.
struct Ranks {
  // Throws StateError in a forked child of the rank, and in a signal handler that runs while the engine waits.
  void check_caller() const;
  // Call it from time to time while this rank waits and others may wait for it. Throws if another rank has failed, or
  // if this one was interrupted; then the others fail, too. `waited` says what for: "it waited for ...".
  void check_while_waiting(std::string_view waited) const;
  // The states of this rank are lost, so collectives of the engine fail on every rank with this reason.
  void fail_all(const std::string& text) const noexcept;
  // Throws StateError if there is no communicator for checkpoints.
  Comm& checkpoint() const;

  Comm& gather;
  Comm& reduce;
  Comm* checkpoint_or_null;
  c10::Device device;
  ProcessMark process = {};
};

}  // namespace zeroshard
