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

// A device communicator that a DeviceWatch observes.
struct WatchedComm {
  int rank = 0;  // this rank's number in error messages
  int64_t timeout_ms = 0;
  PeerWatch peers;
  std::shared_ptr<SharedFailure> failure;
  std::shared_ptr<Divergence> divergence;
  size_t number = 0;                      // index of this communicator in `divergence`
  std::function<std::string()> why_host;  // returns why the host communicator is broken, or "" if it is not
};

// A thread that watches the collectives that a rank has given to its device. The thread is needed because a script that
// itself waits for the device, for example in loss.item(), does not notice a failed peer. A collective without progress
// counts as failed if a peer has died or was stopped, if a peer has called another collective, if the host communicator
// is broken, or if the time-out is over. The thread also asks the store whether another rank has failed. After a
// failure, the thread sets SharedFailure, which aborts the collectives on the device. The script's wait then returns,
// and the rank's next collective throws.
//
// Note [What a thread that watches may do]
// The thread calls no collective. It asks Works whether they are complete and the host communicator whether it is
// broken, looks at processes, and reads and writes keys of the store. A rank whose device waits is not blocked itself,
// so it can still call the collective that another rank waits for. Therefore the thread reports a difference between
// two ranks only if both have made a call with the same number. A rank that has not made the call yet may still make it
// until the time-out. While the rank's own thread waits for the device in a call of the engine, that call looks for
// failures, and the watching thread only exchanges news with other ranks through the store.
class DeviceWatch {
 public:
  DeviceWatch() = default;
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  class Subject;
  // While an object lives, the DeviceWatch watches `comm`. The object must not be destroyed in a forked child.
  class Watching {
   public:
    Watching(std::shared_ptr<DeviceWatch> watch, WatchedComm comm);
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

    // Must be called when the rank's thread has given `op` to the device. `op.seq` must be one more than in the call
    // before.
    void note(const Op& op, const c10::intrusive_ptr<c10d::Work>& work);
    // While an Attended lives, the watching thread does not look for collectives without progress, because the rank's
    // own thread waits for the device and looks for failures itself. If `watching` is null, the object does nothing.
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
  bool is_looking_ = false;  // whether the thread is using subjects without the lock
  int64_t idle_ms_ = 0;      // time since the thread last read the other ranks' news; only the thread uses it
  std::thread thread_;       // runs while there are subjects
};

}  // namespace zeroshard
