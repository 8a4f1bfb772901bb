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

// Saves checkpoints while training continues. start() copies the state. A thread of the saver writes the copy to files,
// and writes held state (SliceData::is_held) directly from its place. At most one save is running. Every rank makes the
// same calls in the same order. Only the thread uses `comm`.
//
// Note [Copies of a device]
// start() queues the copies on the device and returns. Copies of memory whose writers do not wait by themselves come
// first, and the current stream waits for them. The thread waits for each copy before it writes the copied data, and
// for all copies before a save ends, even after an error. After that, nothing reads the state or writes to the staging
// memory.
class AsyncSaver {
 public:
  // A function that copies bytes of slices in host memory. SliceData::read() copies other slices.
  using Copy = std::function<void(void* to, const void* from, int64_t bytes)>;

  // `comm`, `io` and `copies` must outlive the saver. If `copies` is set, it copies the slices that are not in host
  // memory.
  AsyncSaver(Comm& comm, Io& io, Ledger& ledger, DeviceCopies* copies = nullptr);
  // Waits for a running save, and logs an error that no call has thrown yet. A forked child does not have the thread,
  // so in a child the destructor neither waits nor frees anything.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the previous save and allocates the memory that start() with the same arguments needs, because that can
  // fail on one rank alone. Throws the error of the previous save, or ValueError.
  void prepare(const SaveRequest& request, int64_t staging_bytes = 0);
  // Waits for the previous save, and throws its error. Copies the slices that are not held into staging memory of
  // `staging_bytes`, or more if they need more, while the thread already writes them. Returns when the copy is complete
  // or has failed; a failure fails the save on every rank. On a device it returns when the copies are queued, and later
  // work of the current stream may then change the state.
  void start(SaveRequest request, const Copy& copy, int64_t staging_bytes = 0);
  // Waits until no save is running. Throws the error of the last save, once.
  void wait();
  // Waits until no save is running, and keeps the save's error for a later call. Throws only if the wait is interrupted
  // (base/interrupt.h).
  void await_end();
  // Waits until no saver of this process, whoever owns it, has anything left to save in the directory `root`. Throws
  // like await_end().
  static void await_saves_in(const std::string& root);
  bool busy() const;
  // Returns whether a save has failed and was not reported yet. If so, start() or wait() will throw.
  bool failed() const;

 private:
  struct Stretch {  // contiguous bytes of the state and of the copy
    std::byte* to;
    const std::byte* from;  // address in host memory; null: `bytes` of `data` from `offset` on
    std::shared_ptr<const SliceData> data;
    int64_t offset, bytes;
  };

  // Copies of a device that are complete when `wait` returns.
  struct Mark {
    const std::byte* begin;  // their first byte in the staging memory
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
  std::byte* staging_ = nullptr;  // kept from save to save, because fresh memory costs as much as the copy
  int64_t staging_bytes_ = 0;
  Reservation reserved_;               // counts staging_
  std::shared_ptr<SliceData> copied_;  // staging_ as a SliceData
  std::vector<Stretch> stretches_;     // of the last request; prepare() allocates their memory

  // The thread, the data that it shares with the saver, and memory that a device knows. They are a separate object,
  // because a forked child can neither join the thread nor destroy the condition variable on which it waits.
  struct Worker {
    std::shared_ptr<std::byte> staging;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<SaveRequest> request;  // set while a save is running
    std::exception_ptr error;
    const std::byte* copied_until = nullptr;  // data before it in the staging memory may be written to files
    std::exception_ptr copy_error;
    bool copying = false;     // start() is running
    std::vector<Mark> marks;  // copies that nobody has waited for yet, in their order
    bool stop = false;
    std::thread thread;
  };
  // The workers of this process that have not ended. A forked child also has its parent's workers.
  struct Workers;
  static Workers& workers();
  static void await_end(Worker& worker, const std::function<bool(const SaveRequest& request)>& is_awaited);

  std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
  pid_t process_;
};

}  // namespace zeroshard
