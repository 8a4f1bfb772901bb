#pragma once
#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/device_copies.h"
#include "checkpoint/save.h"
#include "memory/ledger.h"

namespace zeroshard {

// Saves checkpoints while training continues. start() copies the state to staging memory. A thread of the saver writes
// the copy to files. The thread reads held state (SliceData::is_held()) without such a copy, because held state does
// not change during the save. At most one save is running. Every rank must make the same calls in the same order. Only
// the thread uses `comm`.
//
// Note [Copies of a device]
// If the saver has DeviceCopies, start() first queues copies on the device for the slices that are not in host memory.
// Then it copies the slices in host memory itself, and returns. The device first copies slices whose later writers do
// not wait for a copy (SliceData::writers_wait() is false). Later work of the current stream waits for these copies.
// The device makes the other copies while it does later work of the stream. The saver's thread waits for each copy
// before it writes the copied data to a file. Before a save ends, even after an error, the thread waits for all copies.
// Thus no copy reads the state or writes to the staging memory after the save.
class AsyncSaver {
 public:
  // A function that copies bytes of slices in host memory. For other slices, the saver calls SliceData::read() or
  // begin_read().
  using Copy = std::function<void(void* to, const void* from, int64_t bytes)>;

  // All arguments must outlive the saver. `copies` is null if no state is in device memory. Without `copies`, start()
  // itself reads the slices that are not in host memory (SliceData::read()).
  AsyncSaver(Comm& comm, Io& io, Ledger& ledger, DeviceCopies* copies = nullptr);
  // Waits for a running save, and logs an error that no call has thrown yet. A forked child does not have the thread,
  // so in a child the destructor neither waits nor destroys the Worker.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the previous save, and allocates the memory that start() with the same arguments needs. The allocation
  // can fail on one rank alone. prepare() is a call of its own, so that the ranks can then agree not to call start().
  // Throws like wait(). Throws OutOfMemory if the ledger's limit does not allow the memory. If the system has no
  // memory, throws StateError with DeviceCopies, and ValueError without them.
  void prepare(const SaveRequest& request, int64_t staging_bytes = 0);
  // Calls prepare(). Copies all slices but the held ones (SliceData::is_held()) to staging memory, while the thread
  // already writes what is copied. The staging memory has `staging_bytes`, or more if the slices need more. Without
  // DeviceCopies, start() returns when the copy is complete or has failed. With DeviceCopies, it returns when it has
  // copied the slices in host memory, and has queued the other copies on the device. Later work of the current stream
  // may then change the state. A failed copy fails the save on every rank.
  void start(SaveRequest request, const Copy& copy, int64_t staging_bytes = 0);
  // Waits until no save is running. Throws the error of the last save, unless an earlier call has thrown it. Also
  // throws like await_end().
  void wait();
  // Waits until no save is running, and keeps the save's error for a later call. Throws only if the program interrupts
  // the wait (base/interrupt.h).
  void await_end();
  // Waits until no saver of this process, whichever engine owns it, has anything left to save in the directory `root`.
  // Throws like await_end().
  static void await_saves_in(const std::string& root);
  bool busy() const;
  // Returns whether a save has failed and no call has thrown its error yet. If so, start() or wait() will throw it.
  bool failed() const;

 private:
  struct Stretch {  // bytes that are contiguous both in the state and in the staging memory
    std::byte* to;
    const std::byte* from;  // address in host memory; null: `bytes` of `data` from `offset` on
    std::shared_ptr<const SliceData> data;
    int64_t offset, bytes;
  };

  // A copy that a device makes. It is complete when `wait` returns.
  struct Mark {
    const std::byte* begin;  // its first byte in the staging memory
    DeviceCopies::Wait wait;
  };

  void run();
  void copy_on_host(const Copy& copy);
  void copy_on_device(const Copy& copy);
  void begin_copies(bool of_waiting_writers);
  void relocate(std::vector<StateSlice>& slices);
  void publish(const std::byte* copied_until, std::exception_ptr error = nullptr);
  void publish(Mark mark);
  void wait_for_copy(const void* end);
  void await_copies() noexcept;
  std::byte* reserve(int64_t bytes);

  Comm& comm_;
  Io& io_;
  Ledger& ledger_;
  DeviceCopies* copies_;
  std::byte* staging_ = nullptr;  // kept for the next save, because the first writes to new memory double a copy's time
  int64_t staging_bytes_ = 0;
  Reservation reserved_;               // counts the bytes of staging_
  std::shared_ptr<SliceData> copied_;  // staging_ as a SliceData
  std::vector<Stretch> stretches_;     // the copies that start() makes; empty at other times

  // The thread, the data that it shares with the saver, and the staging memory, which a device might access directly.
  // They form a separate object, which a forked child never destroys. The child cannot join the thread, cannot destroy
  // the condition variable on which the thread waits, and must not free memory that the device still uses.
  struct Worker {
    std::shared_ptr<std::byte> staging;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<SaveRequest> request;  // set while a save is running
    std::exception_ptr error;
    const std::byte* copied_until = nullptr;  // staging memory before this address is copied, or its copy is in `marks`
    std::exception_ptr copy_error;
    bool copying = false;     // whether start() is running
    std::vector<Mark> marks;  // copies on the device that nobody has waited for yet, in their order
    bool stop = false;
    std::thread thread;
  };
  // A list of the workers of this process. In a forked child the list includes the parent's workers. The entry of a
  // destroyed worker stays until the next saver is constructed.
  struct Workers;
  static Workers& workers();
  static void await_end(Worker& worker, const std::function<bool(const SaveRequest& request)>& is_awaited);

  std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
  pid_t process_;
};

}  // namespace zeroshard
