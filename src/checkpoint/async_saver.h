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

// Saves while training goes on: start() copies the state, a thread writes what is copied, and what is held
// (SliceData::is_held) from where it lies. At most one save is under way. Every rank makes the same calls in the same
// order; `comm` belongs to the thread alone.
//
// Note [Copies of a device]
// start() gives the copies to the device and returns. Those of memory whose writers do not wait by themselves come
// first; the current stream waits for them. The thread waits for each copy before it writes what was copied, and for
// all of them before a save ends, however it ends: then nothing reads the state or writes to the staging memory.
class AsyncSaver {
 public:
  // Copies bytes of slices that are in the host's memory. SliceData::read() copies others.
  using Copy = std::function<void(void* to, const void* from, int64_t bytes)>;

  // `comm`, `io` and `copies` outlive it. With `copies`, what is not in the host's memory is copied by them.
  AsyncSaver(Comm& comm, Io& io, Ledger& ledger, DeviceCopies* copies = nullptr);
  // Waits for a save that is under way; an error that nobody asked for is logged. In a forked child, which does not
  // have the thread, nothing is waited for or freed.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the previous save and gets the memory that start() with the same arguments needs: what can fail on one
  // rank alone. Throws the error of the previous save, or ValueError.
  void prepare(const SaveRequest& request, int64_t staging_bytes = 0);
  // Waits for the previous save, and copies the slices that are not held (into `staging_bytes`, or more when they need
  // more) while they are written; returns when the copy is whole or has failed, which fails the save on every rank. A
  // device has then been given the copies, and the state may change in the order of its current stream. Throws the
  // error of the previous save.
  void start(SaveRequest request, const Copy& copy, int64_t staging_bytes = 0);
  // Waits until nothing is under way. Throws the error of the last save, once.
  void wait();
  // The same, but keeps the save's error for a later call. Throws only an interruption of the wait (base/interrupt.h).
  void await_end();
  // Waits until no saver of this process, whoever has it, is to save anything more in the directory `root`. Throws as
  // above.
  static void await_saves_in(const std::string& root);
  bool busy() const;
  // Whether a save has failed and was not reported yet: start() or wait() will throw.
  bool failed() const;

 private:
  struct Stretch {  // of the state, contiguous there and in the copy
    std::byte* to;
    const std::byte* from;  // in the host's memory; null: `bytes` of `data` from `offset` on
    std::shared_ptr<const SliceData> data;
    int64_t offset, bytes;
  };

  // Copies of a device that are complete after `wait`.
  struct Mark {
    const std::byte* begin;  // where in the staging memory
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
  std::byte* staging_ = nullptr;  // kept from save to save: fresh memory costs as much as the copy
  int64_t staging_bytes_ = 0;
  Reservation reserved_;               // of it
  std::shared_ptr<SliceData> copied_;  // staging_ as slices see it
  std::vector<Stretch> stretches_;     // of the last request; prepare() gets their memory

  // What the thread shares, and memory that a device knows. Apart, since a forked child can neither join the thread nor
  // destroy what it waits on.
  struct Worker {
    std::shared_ptr<std::byte> staging;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<SaveRequest> request;  // set: under way
    std::exception_ptr error;
    const std::byte* copied_until = nullptr;  // what lies before it in the staging memory may be written
    std::exception_ptr copy_error;
    bool copying = false;     // start() is not over
    std::vector<Mark> marks;  // in the order of the copies; those that nobody has waited for yet
    bool stop = false;
    std::thread thread;
  };
  // Those of this process that have not ended; a forked child has its parent's, too.
  struct Workers;
  static Workers& workers();
  static void await_end(Worker& worker, const std::function<bool(const SaveRequest& request)>& is_awaited);

  std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
  pid_t process_;
};

}  // namespace zeroshard
