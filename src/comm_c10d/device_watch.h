#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/op.h"
#include "comm/peer_watch.h"
#include "comm/shared_failure.h"
#include "comm_c10d/divergence.h"

namespace zeroshard {

// A communicator of a device, for a DeviceWatch.
struct WatchedComm {
  int rank = 0;
  int64_t timeout_ms = 0;
  PeerWatch peers;
  std::shared_ptr<SharedFailure> failure;
  std::shared_ptr<Divergence> divergence;
  size_t number = 0;                      // in it
  std::function<std::string()> why_host;  // why the communicator of the host is broken, or ""
};

// A thread that watches what a rank has given to its device. A script may wait for the device itself, and there hears
// of no peer. When a collective makes no progress and a peer is gone, has called something else, or the time-out is
// over, the thread says so in the log and in SharedFailure, which ends what is under way on the device: the script's
// wait returns, and the rank's next call throws.
//
// Note [What a thread that watches may do]
// It takes part in no collective and uses no communicator: it asks works whether they are complete, looks at processes,
// and reads and writes keys of the store. A rank whose device waits is not blocked itself, so a difference counts only
// where both ranks have called: a rank that has not called yet may come until the time is over. While the rank's own
// thread waits in a call of the engine's, that call looks after the device.
class DeviceWatch {
 public:
  DeviceWatch() = default;
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  class Subject;
  // A communicator is watched as long as this lives. Not in a forked child, where it must not be destroyed.
  class Watching {
   public:
    Watching(std::shared_ptr<DeviceWatch> watch, WatchedComm comm);
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

    // The rank's thread has given `op` to the device; numbers grow by one.
    void note(const Op& op, const c10::intrusive_ptr<c10d::Work>& work);
    // As long as it lives, the rank's own thread looks after the device. Null: nobody else does.
    class Attended {
     public:
      explicit Attended(const Watching* watching);
      ~Attended();
      Attended(const Attended&) = delete;
      Attended& operator=(const Attended&) = delete;

     private:
      Subject* subject_;
    };

   private:
    std::shared_ptr<DeviceWatch> watch_;
    std::shared_ptr<Subject> subject_;
  };

 private:
  void add(std::shared_ptr<Subject> subject);
  void remove(const std::shared_ptr<Subject>& subject);
  void run();
  void look_at_all(const std::vector<std::shared_ptr<Subject>>& subjects, int64_t elapsed_ms);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Subject>> subjects_;
  bool is_looking_ = false;  // the thread uses subjects without the lock
  int64_t idle_ms_ = 0;      // since it last heard what other ranks tell; of the thread
  std::thread thread_;       // as long as there are subjects
};

}  // namespace zeroshard
