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

#include "checkpoint/save.h"
#include "memory/ledger.h"

namespace zeroshard {

// Saves while training goes on: start() copies the state, a thread writes what is copied. At most one save is under
// way. Every rank makes the same calls in the same order; `comm` belongs to the thread alone.
class AsyncSaver {
 public:
  // Copies bytes of slices that are in the host's memory. SliceData::read() copies others.
  using Copy = std::function<void(void* to, const void* from, int64_t bytes)>;

  // `comm` and `io` outlive it.
  AsyncSaver(Comm& comm, Io& io, Ledger& ledger);
  // Waits for a save that is under way; an error that nobody asked for is logged. In a forked child, which does not
  // have the thread, nothing is waited for or freed.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the previous save and gets the memory that start() with the same arguments needs: what can fail on one
  // rank alone. Throws the error of the previous save, or ValueError.
  void prepare(const SaveRequest& request, int64_t staging_bytes = 0);
  // Waits for the previous save, and copies the slices (into `staging_bytes`, or more when they need more) while they
  // are written; returns when the copy is whole or has failed, which fails the save on every rank. Throws the error of
  // the previous save.
  void start(SaveRequest request, const Copy& copy, int64_t staging_bytes = 0);
  // Waits until nothing is under way. Throws the error of the last save, once.
  void wait();
  // The same, but keeps the save's error for a later call. Throws only an interruption of the wait (base/interrupt.h).
  void await_end();
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

  void run();
  void relocate(std::vector<StateSlice>& slices);
  void publish(const std::byte* copied_until, std::exception_ptr error = nullptr);
  void wait_for_copy(const void* end);
  std::byte* reserve(int64_t bytes);

  Comm& comm_;
  Io& io_;
  Ledger& ledger_;
  std::byte* staging_ = nullptr;  // kept from save to save: fresh memory costs as much as the copy
  int64_t staging_bytes_ = 0;
  std::shared_ptr<SliceData> copied_;  // staging_ as slices see it
  std::vector<Stretch> stretches_;     // of the last request; prepare() gets their memory

  // What the thread shares. Apart, since a forked child can neither join the thread nor destroy what it waits on.
  struct Worker {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<SaveRequest> request;  // set: under way
    std::exception_ptr error;
    const std::byte* copied_until = nullptr;  // what lies before it in the staging memory may be written
    std::exception_ptr copy_error;
    bool stop = false;
    std::thread thread;
  };
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
  pid_t process_;
};

}  // namespace zeroshard
