#include "comm_c10d/device_watch.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>

#include "base/format.h"
#include "base/log.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kTickMs = 200;         // time between two looks; a look takes only some microseconds
constexpr int64_t kHearMs = 1000;        // time between two calls of Divergence::hear()
constexpr int64_t kSuspiciousMs = 1000;  // after this time without progress, the thread looks for a cause
constexpr int64_t kLongestMs = 8000;     // the time between two comparisons doubles up to this

}  // namespace

// A watched communicator. It has the newest collectives that the device was given, and the time that has passed without
// progress in the oldest incomplete one.
class DeviceWatch::Subject {
 public:
  explicit Subject(WatchedComm comm) : comm_(std::move(comm)) {}

  void note(const Op& op, const c10::intrusive_ptr<c10d::Work>& work) {
    // `before` is declared above the lock, so that the Work that is replaced is destroyed after the lock is released.
    c10::intrusive_ptr<c10d::Work> before = work;
    const std::scoped_lock lock(mutex_);
    Given& given = given_[op.seq % given_.size()];
    given.op = op;
    std::swap(given.work, before);
    last_ = op.seq;
  }
  void attend(int change) { attended_ += change; }

  const WatchedComm& comm() const { return comm_; }
  // Returns why the communicators that share SharedFailure must fail, or "" if they need not. `elapsed_ms` is the time
  // since the last look. While the communicator is watched, only the watching thread may call look(), take() and
  // tell_failure().
  std::string look(int64_t elapsed_ms);
  // If `news` says that a rank has failed, sets SharedFailure. If not, but a rank has asked for calls, publishes the
  // calls of this rank, and sets SharedFailure if they differ from those of other ranks.
  void take(const Divergence::News& news);
  // Tells the other ranks why the communicators have failed, unless an earlier call has done so, or this rank knows of
  // the failure from another rank.
  void tell_failure();

 private:
  struct Given {
    Op op;
    c10::intrusive_ptr<c10d::Work> work;  // null: no collective yet, or it is complete
  };

  std::optional<Op> oldest_incomplete();
  std::string trouble_with(const Op& op);
  std::string time_is_over(const Op& op) const;

  WatchedComm comm_;
  std::mutex mutex_;  // protects given_ and last_
  std::array<Given, 64> given_;
  uint64_t last_ = 0;
  std::atomic<int> attended_ = 0;
  uint64_t done_ = 0;  // all collectives up to this number are complete
  // The number of the oldest collective that was not complete at the last look. 0: all were complete.
  uint64_t stuck_ = 0;
  // stuck_ms_ is the time for which collective stuck_ has made no progress. When it reaches next_comparison_ms_, this
  // rank compares its calls with those of other ranks.
  int64_t stuck_ms_ = 0, next_comparison_ms_ = 0;
  bool told_ = false;
};

std::optional<Op> DeviceWatch::Subject::oldest_incomplete() {
  while (true) {
    Given given;
    {
      const std::scoped_lock lock(mutex_);
      // Collectives that are too old for the ring given_ count as complete. The device runs collectives in order, so an
      // incomplete one holds up all later ones, which are in the ring.
      if (last_ - done_ > given_.size()) done_ = last_ - given_.size();
      if (done_ == last_) return std::nullopt;
      given = given_[(done_ + 1) % given_.size()];
    }
    if (given.op.seq == done_ + 1 && given.work) {
      try {
        if (!given.work->isCompleted()) return given.op;
      } catch (const std::exception&) {  // a failed collective counts as complete; the rank's own call reports it
      }
    }
    ++done_;
    const std::scoped_lock lock(mutex_);
    Given& old = given_[done_ % given_.size()];
    if (old.op.seq == done_) old.work.reset();  // `given` owns the Work now, and destroys it without the lock
  }
}

std::string DeviceWatch::Subject::look(int64_t elapsed_ms) {
  const std::optional<Op> op = oldest_incomplete();
  if (!op || op->seq != stuck_ || attended_ > 0) {
    stuck_ = op ? op->seq : 0;
    stuck_ms_ = 0;
    next_comparison_ms_ = kSuspiciousMs;
    return {};
  }
  // If more than 2 * kTickMs have passed, this process was stopped, so the excess does not count against the peers.
  stuck_ms_ += std::min(elapsed_ms, 2 * kTickMs);
  if (stuck_ms_ < kSuspiciousMs && stuck_ms_ < comm_.timeout_ms) return {};
  const std::string trouble = trouble_with(*op);
  if (trouble.empty() || oldest_incomplete().value_or(Op()).seq != op->seq) return {};
  return concat("rank ", comm_.rank, ": the device waits in collective #", op->seq, " ", op->text(), ": ", trouble);
}

std::string DeviceWatch::Subject::trouble_with(const Op& op) {
  if (const std::string host = comm_.why_host(); !host.empty()) return host;
  if (const std::string peers = comm_.peers.check_all(); !peers.empty()) return peers;
  const bool is_over = stuck_ms_ >= comm_.timeout_ms;
  if (stuck_ms_ >= next_comparison_ms_ || is_over) {
    next_comparison_ms_ = stuck_ms_ + std::min(stuck_ms_, kLongestMs);
    if (const auto difference = comm_.divergence->look(comm_.number, nullptr)) return *difference;
  }
  return is_over ? time_is_over(op) : "";
}

std::string DeviceWatch::Subject::time_is_over(const Op& op) const {
  std::string who;
  for (const auto& [rank, last] : comm_.divergence->behind(comm_.number, op.seq))
    who += concat(who.empty() ? "" : ", ", comm_.peers.name(rank), last == 0 ? "" : concat(" (last in #", last, ")"));
  const std::string text = concat("no progress for ", stuck_ms_, " ms (zeroshard.timeout_s); ");
  if (!who.empty()) return concat(text, "not known to have called it: ", who);
  return concat(
      text,
      "every rank has called it: look at the network, and whether devices have got the collectives of several "
      "groups in different orders");
}

void DeviceWatch::Subject::take(const Divergence::News& news) {
  if (!news.failure.empty()) {
    if (!comm_.failure->happened()) log(LogLevel::kError, news.failure);
    comm_.failure->set(news.failure);
    told_ = true;  // the rank that sent the message has told all ranks
  } else if (news.asked && !comm_.failure->happened()) {
    if (const auto difference = comm_.divergence->look(comm_.number, nullptr, /*asks=*/false))
      comm_.failure->set(concat("rank ", comm_.rank, ": ", *difference));
  }
}

void DeviceWatch::Subject::tell_failure() {
  if (std::exchange(told_, true)) return;
  try {
    comm_.divergence->tell_failure(comm_.failure->text());
  } catch (const std::exception&) {  // for example no memory; then the other ranks detect the failure themselves
  }
}

void DeviceWatch::add(std::shared_ptr<Subject> subject) {
  const std::scoped_lock lock(mutex_);
  subjects_.push_back(std::move(subject));
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {  // this process might be unable to start threads
    log(LogLevel::kWarning, concat("nobody watches the device while the script waits for it: ", error.what()));
  }
}

void DeviceWatch::remove(const std::shared_ptr<Subject>& subject) {
  std::unique_lock lock(mutex_);
  std::erase(subjects_, subject);
  changed_.notify_all();
  changed_.wait(lock, [&] { return !is_looking_; });
  if (!subjects_.empty() || !thread_.joinable()) return;
  lock.unlock();
  thread_.join();
  thread_ = {};
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!subjects_.empty()) {
    changed_.wait_for(lock, std::chrono::milliseconds(kTickMs), [&] { return subjects_.empty(); });
    const auto now = Clock::now();
    const int64_t elapsed_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - last).count();
    last = now;
    const std::vector<std::shared_ptr<Subject>> subjects = subjects_;
    is_looking_ = true;
    lock.unlock();
    look_at_all(subjects, elapsed_ms);
    lock.lock();
    is_looking_ = false;
    changed_.notify_all();
  }
}

void DeviceWatch::look_at_all(const std::vector<std::shared_ptr<Subject>>& subjects, int64_t elapsed_ms) {
  idle_ms_ += elapsed_ms;
  const bool hears = idle_ms_ >= kHearMs;
  if (hears) idle_ms_ = 0;
  for (size_t i = 0; i < subjects.size(); ++i) {
    Subject& subject = *subjects[i];
    SharedFailure& failure = *subject.comm().failure;
    try {
      const auto& divergence = subject.comm().divergence;
      const auto has_same = [&](const auto& other) { return other->comm().divergence == divergence; };
      const bool is_first = std::none_of(subjects.begin(), subjects.begin() + std::ptrdiff_t(i), has_same);
      if (failure.happened()) {
        if (is_first) subject.tell_failure();
        continue;
      }
      if (const std::string why = subject.look(elapsed_ms); !why.empty()) {
        if (!failure.happened()) log(LogLevel::kError, why);
        failure.set(why);
        continue;
      }
      if (!hears || !is_first) continue;
      const Divergence::News news = divergence->hear();
      for (const auto& other : subjects)
        if (has_same(other)) other->take(news);
    } catch (const std::exception&) {  // for example no memory; the next look follows soon
    }
  }
}

DeviceWatch::Watching::Watching(std::shared_ptr<DeviceWatch> watch, WatchedComm comm)
    : watch_(std::move(watch)), subject_(std::make_shared<Subject>(std::move(comm))) {
  watch_->add(subject_);
}

DeviceWatch::Watching::~Watching() {
  watch_->remove(subject_);
  if (subject_->comm().failure->happened()) subject_->tell_failure();
}

void DeviceWatch::Watching::note(const Op& op, const c10::intrusive_ptr<c10d::Work>& work) {
  subject_->note(op, work);
}

DeviceWatch::Watching::Attended::Attended(const Watching* watching)
    : subject_(watching != nullptr ? watching->subject_.get() : nullptr) {
  if (subject_ != nullptr) subject_->attend(1);
}

DeviceWatch::Watching::Attended::~Attended() {
  if (subject_ != nullptr) subject_->attend(-1);
}

}  // namespace zeroshard
