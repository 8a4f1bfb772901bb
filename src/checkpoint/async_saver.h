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

// Saves checkpoints while training continues. start() copies the state. A thread of the saver writes the copy to files.
// The thread writes held state (SliceData::is_held()) directly from its place, without a copy. At most one save is
// running. Every rank must make the same calls in the same order. Only the thread uses `comm`.
//
// Note [Copies of a device]
// start() queues the copies on the device and returns. The first copies read memory whose later writers do not wait for
// a copy (SliceData::writers_wait() is false), so the current stream waits for these copies. The other copies run next
// to later work of the stream. The saver's thread waits for each copy before it writes the copied data to a file.
// Before a save ends, even after an error, the thread waits for all copies. After that, nothing reads the state or
// writes to the staging memory.
class AsyncSaver {
 public:
  // A function that copies bytes of slices in host memory. For other slices, the saver calls SliceData::read() or
  // begin_read().
  using Copy = std::function<void(void* to, const void* from, int64_t bytes)>;

  // `comm`, `io` and `copies` must outlive the saver. If `copies` is not null, it copies the slices that are not in
  // host memory.
  AsyncSaver(Comm& comm, Io& io, Ledger& ledger, DeviceCopies* copies = nullptr);
  // Waits for a running save, and logs an error that no call has thrown yet. A forked child does not have the thread,
  // so in a child the destructor neither waits nor frees anything.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the previous save, and allocates the memory that start() with the same arguments needs. prepare() is a
  // call of its own, because the allocation can fail on one rank alone. Throws the error of the previous save, or
  // ValueError.
  void prepare(const SaveRequest& request, int64_t staging_bytes = 0);
  // Waits for the previous save, and throws its error. Copies the slices that are not held into staging memory, while
  // the thread already writes what is copied. The staging memory has `staging_bytes`, or more if the slices need more.
  // Returns when the copy is complete or has failed. A failed copy fails the save on every rank. On a device, start()
  // returns when the copies are queued, and later work of the current stream may then change the state.
  void start(SaveRequest request, const Copy& copy, int64_t staging_bytes = 0);
  // Waits until no save is running. Throws the error of the last save, once.
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
  struct Stretch {  // bytes that are contiguous both in the state and in the copy
    std::byte* to;
    const std::byte* from;  // address in host memory; null: `bytes` of `data` from `offset` on
    std::shared_ptr<const SliceData> data;
    int64_t offset, bytes;
  };

  // The copies on a device that are complete when `wait` returns.
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
  Reservation reserved_;               // counts the bytes of staging_
  std::shared_ptr<SliceData> copied_;  // staging_ as a SliceData
  std::vector<Stretch> stretches_;     // of the last request; prepare() reserves memory for them

  // The thread, the data that it shares with the saver, and the staging memory, which a device might access directly.
  // They form a separate object, which a forked child never destroys, because the child can neither join the thread nor
  // destroy the condition variable on which the thread waits.
  struct Worker {
    std::shared_ptr<std::byte> staging;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<SaveRequest> request;  // set while a save is running
    std::exception_ptr error;
    const std::byte* copied_until = nullptr;  // the staging memory before this address may be written to files
    std::exception_ptr copy_error;
    bool copying = false;     // whether start() is running
    std::vector<Mark> marks;  // copies that nobody has waited for yet, in their order
    bool stop = false;
    std::thread thread;
  };
  // The workers of this process that have not ended. In a forked child they include the parent's workers.
  struct Workers;
  static Workers& workers();
  static void await_end(Worker& worker, const std::function<bool(const SaveRequest& request)>& is_awaited);

  std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
  pid_t process_;
};

}  // namespace zeroshard
