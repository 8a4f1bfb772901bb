#include "comm_c10d/c10d_core.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPollMs = 100;
constexpr int64_t kLookMs = 1000;  // time between comparisons with the calls of other ranks

uint64_t extend(uint64_t hash, const Op& op) {
  // Hashes the fields of Op on which ranks must agree. They come before `input`.
  const auto* bytes = reinterpret_cast<const unsigned char*>(&op);
  for (size_t i = 0; i < offsetof(Op, input); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
  return hash;
}

// Returns the text of an error, without Gloo's advice to look for the cause in another process, because
// fail_explained() looks there itself.
std::string text_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find(" This is typically caused by a remote worker"));
}

int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

// Creates torch's thread pool. A process that was forked after at::set_num_threads() gets a new pool when one of its
// threads computes for the first time. If two threads, such as those of a Gloo group, do so at the same time, one of
// them finds no pool. So this function creates the pool before they compute. It does this on a new thread, because
// at::init_num_threads() also changes the number of threads for the thread that calls it.
void renew_thread_pool() {
  std::thread([] {
    try {
      at::init_num_threads();
    } catch (const std::exception&) {  // another thread is creating the pool
    }
  }).join();
}

}  // namespace

C10dCore::C10dCore(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, PeerWatch watch,
                   const CommOptions& options, std::shared_ptr<Divergence> divergence)
    : group_(std::move(group)),
      device_(device),
      watch_(std::move(watch)),
      options_(options),
      compared_{divergence ? std::move(divergence)
                           : std::make_shared<Divergence>(group_ ? group_->getStore() : nullptr, rank(), world_size(),
                                                          options.numbers),
                0},
      failure_(options.failure ? options.failure : std::make_shared<SharedFailure>()) {
  compared_.number = compared_.divergence->add_communicator();
  renew_thread_pool();
}

C10dCore::~C10dCore() {
  // Takes a reference that is never released, so that the group is never destroyed. The destructor of a Gloo group
  // joins threads that can wait half an hour for a peer that does not answer.
  if (still_writes() && group_) c10::raw::intrusive_ptr::incref(group_.get());
}

c10::intrusive_ptr<c10d::Work> C10dCore::issue(Op& op, const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  throw_if_failed();
  op.seq = ++history_.seq;
  history_.hash = extend(history_.hash, op);
  compared_.divergence->note(compared_.number, op, history_.hash);
  try {
    auto work = start();
    if (watching_) watching_->note(op, work);
    return work;
  } catch (const std::exception& error) {
    fail_explained(op, text_of(error), /*waits=*/false);
  }
}

void C10dCore::complete(c10d::Work& work, const Op& op) {
  throw_if_failed();
  if (device_.is_cpu()) return complete_on_host(work, op);
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail(op, text_of(error));
  }
}

void C10dCore::complete_on_host(c10d::Work& work, const Op& op) {
  throw_if_failed();
  const DeviceWatch::Watching::Attended attended(watching_.get());
  poll([&work] { return work.isCompleted(); }, op);
  try {
    work.wait();  // does not wait any more, but throws if the work has failed
  } catch (const std::exception& error) {
    fail_explained(op, text_of(error), /*waits=*/true);
  }
}

// Looks for an explanation repeatedly for more than a second. One reason is that a rank that waits for this one
// publishes its calls only after a second. The other is that the connections of a dying process break before the
// process is gone.
void C10dCore::fail_explained(const Op& op, const std::string& message, bool waits) {
  for (int attempt = 0; attempt < 12; ++attempt) {
    const auto difference = compared_.divergence->look(compared_.number, waits ? &op : nullptr);
    if (difference) fail(op, concat(*difference, ": ", message));
    if (const std::string trouble = watch_.check_all(); !trouble.empty()) fail(op, concat(trouble, ": ", message));
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
  }
  fail(op, message);
}

// Polls, because neither version of Work::wait() is suitable. The one without a time-out notices a stopped peer only
// after half an hour. The one with a time-out throws when the time is over, and some backends then give up the
// operation.
void C10dCore::poll(const std::function<bool()>& is_done, const Op& op) {
  for (int i = 0; i < 50; ++i) {
    if (is_done()) return;
    std::this_thread::yield();
  }
  const auto start = Clock::now();
  auto last = start, looked = start;
  LongWait wait(options_.wait_listener);
  int64_t waited_ms = 0, looks = 0;
  while (!is_done()) {
    // Each nap is a sixteenth of the time waited so far, but at least 10 and at most 500 microseconds. So a nap is
    // short compared with the wait, and a long wait causes few wake-ups.
    const auto nap = (Clock::now() - start) / 16;
    std::this_thread::sleep_for(
        std::clamp<Clock::duration>(nap, std::chrono::microseconds(10), std::chrono::microseconds(500)));
    if (ms_since(looked) < kPollMs) continue;
    looked = Clock::now();
    // If more than 2 * kPollMs have passed, this process was stopped, so the excess does not count against the peers.
    waited_ms += std::min<int64_t>(ms_since(last), 2 * kPollMs);
    last = looked;
    wait.lasts([&] { return concat("#", op.seq, " ", op.text()); });
    throw_if_failed();  // the DeviceWatch, or another communicator, might have detected a failure
    heed_interrupt(op);
    if (const std::string trouble = watch_.check_all(); !trouble.empty() && !is_done()) fail(op, trouble);
    if (waited_ms / kLookMs > looks) {
      looks = waited_ms / kLookMs;
      // Compares even if the work has just ended. The work also ends when another rank finds the difference first and
      // closes its connections.
      if (const auto difference = compared_.divergence->look(compared_.number, &op)) fail(op, *difference);
    }
    if (waited_ms >= options_.timeout_ms) fail(op, concat("not done after ", waited_ms, " ms: a rank is missing"));
  }
}

void C10dCore::await_stream(const Op& op, const std::function<void()>& check) {
  const DeviceWatch::Watching::Attended attended(watching_.get());
  try {
    const c10::impl::VirtualGuardImpl device(device_.type());
    c10::Event event(device_.type());
    event.record(device.getStream(device_.has_index() ? device_ : device.getDevice()));
    const auto is_done = [&] {
      check();
      return event.query();
    };
    poll(is_done, op);
  } catch (const c10::Error& error) {
    fail(op, text_of(error));
  }
}

void C10dCore::watch(std::function<std::string()> why_host) {
  const auto watch = options_.device_watch ? options_.device_watch : std::make_shared<DeviceWatch>();
  watching_ = std::make_unique<DeviceWatch::Watching>(
      watch, WatchedComm{number_of(rank()), options_.timeout_ms, watch_, failure_, compared_.divergence,
                         compared_.number, std::move(why_host)});
}

void C10dCore::report_difference(const Op& op) {
  fail_explained(op, "ranks have called different collectives on their devices", /*waits=*/false);
}

void C10dCore::leave(c10d::Work& work) noexcept {
  try {
    if (!work.isCompleted() || work.exception()) was_left_ = true;
  } catch (const std::exception&) {
    was_left_ = true;
  }
}

void C10dCore::complete_all() {
  const std::vector<Pending*> pending = pending_;  // copied, because a wait removes elements
  for (Pending* each : pending) each->wait_pending();
}

void C10dCore::throw_if_failed() const {
  if (is_forked()) throw CommError(process_.refusal(number_of(rank()), "communicator"));
  if (failed()) throw CommError(failure_->text());
}

void C10dCore::fail(const Op& op, const std::string& what) {
  failure_->set(concat("rank ", number_of(rank()), ": collective #", op.seq, " ", op.text(), " failed: ", what));
  throw CommError(failure_->text());
}

void C10dCore::heed_interrupt(const Op& op) {
  try {
    check_interrupt();
  } catch (const std::exception&) {
    abort(
        concat("rank ", number_of(rank()), " was interrupted while it waited in collective #", op.seq, " ", op.text()));
    throw;
  }
}

void C10dCore::abort(std::string_view reason) noexcept {
  if (is_forked()) return;
  failure_->set(concat(reason, " [reported by rank ", number_of(rank()), "]"));
  end();
}

void C10dCore::end() noexcept {
  if (ended_.exchange(true) || !group_) return;
  const auto abort = [group = group_] {
    try {
      group->abort();
    } catch (const std::exception&) {
    }
  };
  if (device_.is_cpu()) return abort();
  // NCCL's abort can wait for the whole device, and so for collectives of another communicator of this rank. Such
  // collectives end only when the other communicator is aborted, which happens later on this thread. So this thread
  // waits for at most half a second, which is usually enough for an abort.
  constexpr auto kPatience = std::chrono::milliseconds(500);
  try {
    std::packaged_task<void()> task(abort);
    const std::future<void> ended = task.get_future();
    std::thread(std::move(task)).detach();
    ended.wait_for(kPatience);
  } catch (const std::exception&) {  // this process might be unable to start threads
    abort();
  }
}

}  // namespace zeroshard
