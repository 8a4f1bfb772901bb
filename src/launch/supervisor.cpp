#include "launch/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "base/host_name.h"
#include "launch/descendants.h"

namespace zeroshard {
namespace {

constexpr double kFailureGraceS = 5;  // the most time from a rank's failure until the others get SIGKILL
constexpr double kLingerS = 2;        // time in which processes that outlive a successful job can end by themselves
constexpr double kEndS = 1;           // time that such processes have to end after a signal
constexpr double kDumpS = 2;          // time that hanging ranks have to print their stacks
// The time to wait for processes that even SIGKILL does not end, because they wait for a device.
constexpr double kGiveUpS = 20;
constexpr double kLaterFailureS = 1;  // failures within this time after the first are reported, too
constexpr double kTwiceS = 0.25;      // two signals this close together are one, sent to the launcher and to its group
constexpr size_t kReadLines = 400;    // how many lines of a rank's stderr are searched; many can be stack frames
constexpr double kNewsS = 1;          // time in which news of an earlier failure on another host can arrive
constexpr double kNever = std::numeric_limits<double>::infinity();

Start start_of(const SupervisorInputs& inputs, const HangWatch& watch) {
  return {inputs.port, inputs.attempt.restarts, watch.heartbeat_fd(),
          inputs.link == nullptr ? "" : inputs.link->interface()};
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, const SupervisorInputs& inputs)
    : options_(options),
      inputs_(inputs),
      signals_(::signalfd(-1, &inputs.handled, SFD_CLOEXEC | SFD_NONBLOCK)),
      hang_watch_(options),
      group_(options, start_of(inputs, hang_watch_), inputs.rank_mask),
      output_(options, group_.take_streams(), inputs.attempt.restarts > 0),
      deadline_s_(kNever) {
  if (!signals_) throw_errno("signalfd");
}

Conclusion Supervisor::run() {
  while (!finished()) {
    wait();
    handle_signals();
    check_lifeline();
    output_.read_some();
    handle_exits();
    check_stalls();
    check_hang();
    check_absence();
    check_hosts();
    check_deadline();
    output_.flush_stale();
  }
  return conclude();
}

void Supervisor::wait() {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  if (cause_.kind != Cause::Kind::kLauncherGone) fds.push_back({inputs_.lifeline, POLLIN, 0});
  if (inputs_.link != nullptr) inputs_.link->add_to(fds);
  output_.add_to(fds);
  const double now = group_.elapsed_s();
  double wait_s = output_.throttled() ? 0.02 : 1.0;
  if (!group_.empty()) wait_s = std::min(wait_s, deadline_s_ - now);  // a deadline counts only while a process is left
  // This process is not always told that a process which lost its parent has ended, so it looks often.
  if (phase_ != Phase::kRunning && !group_.empty()) wait_s = std::min(wait_s, 0.02);
  if (options_.stall_timeout_s > 0) wait_s = std::min(wait_s, options_.stall_timeout_s / 4);
  if (options_.hang_timeout_s > 0) wait_s = std::min(wait_s, options_.hang_timeout_s / 8);
  ::poll(fds.data(), fds.size(), static_cast<int>(std::max(0.0, wait_s) * 1000) + 1);
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const bool forwarded = info.ssi_pid == static_cast<uint32_t>(::getppid());
    handle_signal(static_cast<int>(info.ssi_signo), forwarded);
  }
}

void Supervisor::handle_signal(int signal, bool forwarded) {
  switch (signal) {
    case SIGCHLD:
      break;  // reap() looks for ended processes in every round
    case SIGTSTP:
      suspend();
      break;
    case SIGCONT:
      resume();
      break;
    case SIGUSR1:
    case SIGUSR2:
      group_.signal(signal);
      break;
    default:
      stop_for(signal, forwarded);
  }
}

// Ends the job after a signal. `forwarded` says whether this host's launcher has forwarded the signal. If the launcher
// of another host has reported the signal, `other_host` names that host.
//
// If the job is ending already, SIGINT kills the ranks, and so does a signal that has come before. It must be
// forwarded, and must come later than kTwiceS after the ranks were told to end. A signal that is not forwarded does not
// kill them, because Slurm and systemd send signals to all processes of a job, so this process can get one signal
// twice, with any delay between. If the job ends because of a signal on another host, the next signal that this host
// gets itself does not kill them either, because it may be the same.
void Supervisor::stop_for(int signal, bool forwarded, const std::string& other_host) {
  const double now = group_.elapsed_s();
  const bool known = signal == SIGINT || signal == stop_signal_ || signal == cause_.signal;
  const bool first_here = cause_.kind == Cause::Kind::kSignal && !cause_.text.empty();
  stop_signal_ = signal;
  if (phase_ == Phase::kKilling) return;
  if (cause_.kind == Cause::Kind::kNone) {
    begin_end({.kind = Cause::Kind::kSignal, .signal = signal, .text = other_host});
    signalled_at_s_ = now;
    output_.notice(concat(signal_name(signal), other_host.empty() ? "" : " on host ", other_host,
                          ": forwarded to the ranks, which have ", options_.grace_period_s,
                          " s to end; a second one kills them"));
    group_.signal(signal);
    if (!suspended_) group_.signal(SIGCONT);
    enter(Phase::kStopping, options_.grace_period_s);
  } else if (first_here && other_host.empty()) {  // the ranks have already got the signal
    cause_.text.clear();
    signalled_at_s_ = now;
  } else if (known && forwarded && now - signalled_at_s_ > kTwiceS) {
    output_.notice(concat(signal_name(signal), ": killing all ranks"));
    if (inputs_.link != nullptr) inputs_.link->tell({HostNews::Kind::kKill, signal, host_name(), 0});
    enter(Phase::kKilling, kGiveUpS);
  }
}

// Stops all processes below this one. Sends SIGSTOP, because a program can ignore SIGTSTP.
void Supervisor::suspend() {
  suspended_ = true;
  group_.signal_descendants(SIGSTOP);
}

void Supervisor::resume() {
  if (!suspended_) return;
  group_.signal_descendants(SIGCONT);
  hang_watch_.forgive();
  suspended_ = false;
}

void Supervisor::check_lifeline() {
  pollfd fd{inputs_.lifeline, POLLIN, 0};
  if (cause_.kind == Cause::Kind::kLauncherGone || ::poll(&fd, 1, 0) <= 0) return;
  begin_end({.kind = Cause::Kind::kLauncherGone, .text = concat("the launcher on host ", host_name(), " was killed")});
  enter(Phase::kKilling, kGiveUpS);
}

void Supervisor::handle_exits() {
  for (const RankProcess& ended : group_.reap()) {
    if (!ended.exit->failed() || cause_.kind != Cause::Kind::kNone) continue;
    begin_end({.kind = Cause::Kind::kFailure,
               .rank = ended.rank,
               .text = describe_exit(ended),
               .code = ended.exit->shell_code()},
              group_.elapsed_s() - ended.exit->at_s);
    if (!group_.all_exited()) output_.notice(describe_exit(ended) + "; ending the other ranks");
    end_ranks();
  }
  if (!group_.all_exited()) return;
  if (phase_ == Phase::kRunning) enter(Phase::kLingering, kLingerS);
  // If a shell runs the program of a rank, the shell might die of the signal at once, while the program, which got the
  // signal, too, is still saving. So ranks count as ending while any of their process groups has a member.
  const bool still_ending =
      cause_.kind == Cause::Kind::kSignal && options_.signal_whole_group && group_.has_group_members();
  if ((phase_ == Phase::kStopping || phase_ == Phase::kDumping) && !still_ending) enter(Phase::kEnding, kEndS);
}

void Supervisor::check_stalls() {
  if (options_.stall_timeout_s <= 0 || suspended_ || cause_.kind != Cause::Kind::kNone) return;
  for (const RankProcess& rank : group_.ranks()) {
    if (!rank.stopped_since_s) continue;
    const double stopped_s = group_.elapsed_s() - *rank.stopped_since_s;
    if (stopped_s < options_.stall_timeout_s) continue;
    begin_end({.kind = Cause::Kind::kStall, .rank = rank.rank, .text = describe_stop(rank, stopped_s)});
    output_.notice(cause_.text + "; ending the job");
    end_ranks();
    return;
  }
}

void Supervisor::check_hang() {
  if (phase_ == Phase::kDumping && hang_watch_.stacks_printed()) end_ranks();
  if (phase_ != Phase::kRunning || suspended_ || cause_.kind != Cause::Kind::kNone) return;
  const auto finding = hang_watch_.check(group_.ranks());
  if (!finding) return;
  begin_end({.kind = Cause::Kind::kHang, .rank = finding->rank, .text = finding->report});
  signalled_at_s_ = group_.elapsed_s();
  output_.notice(finding->report);
  hang_watch_.ask_for_stacks(group_.ranks());
  enter(Phase::kDumping, kDumpS);
}

void Supervisor::check_absence() {
  if (phase_ != Phase::kRunning || suspended_ || cause_.kind != Cause::Kind::kNone) return;
  const auto finding = hang_watch_.check_absence(group_.ranks(), group_.elapsed_s());
  if (!finding) return;
  begin_end({.kind = Cause::Kind::kAbsence, .rank = finding->rank, .text = finding->report});
  output_.notice(cause_.text + "; ending the job");
  end_ranks();
}

void Supervisor::check_hosts() {
  if (inputs_.link == nullptr) return;
  for (const HostNews& news : inputs_.link->look()) heed(news);
}

// Acts on news from another host. If ranks have failed on two hosts, the earlier failure is the cause of the job's end,
// because the failure of a rank also makes ranks of other hosts fail.
void Supervisor::heed(const HostNews& news) {
  if (news.kind == HostNews::Kind::kSignal) return stop_for(news.number, /*forwarded=*/false, news.text);
  if (news.kind == HostNews::Kind::kKill) {
    output_.notice(concat(signal_name(news.number), " again, on host ", news.text, ": killing all ranks"));
    return enter(Phase::kKilling, kGiveUpS);
  }
  const bool is_first = cause_.kind == Cause::Kind::kNone;
  const bool is_earlier =
      cause_.kind == Cause::Kind::kFailure && group_.elapsed_s() - news.age_s < rank(cause_.rank).exit->at_s;
  if (!is_first && !is_earlier) return;
  cause_ = {.kind = Cause::Kind::kOtherHost, .text = news.text, .code = news.number};
  if (!was_asked_to_stop(cause_.code)) hang_watch_.tell_ranks(cause_.text);
  output_.notice(cause_.text + "; ending the ranks of this host");
  if (is_first && !group_.empty()) end_ranks();
}

// Notes the cause of the job's end, which happened `age_s` seconds ago. Tells the launchers of other hosts, except of a
// signal that one of them has reported.
void Supervisor::begin_end(Cause cause, double age_s) {
  cause_ = std::move(cause);
  if (inputs_.link == nullptr) return;
  if (cause_.kind != Cause::Kind::kSignal)
    inputs_.link->tell({HostNews::Kind::kFailed, cause_.code, cause_.text.substr(0, cause_.text.find('\n')), age_s});
  else if (cause_.text.empty())
    inputs_.link->tell({HostNews::Kind::kSignal, cause_.signal, host_name(), age_s});
}

// Waits for news of an earlier failure, if a rank of this host has failed with an exit code. A rank that failed because
// a rank of another host failed can end before that host's news arrives.
void Supervisor::await_hosts() {
  const double end_s = group_.elapsed_s() + kNewsS;
  const auto may_follow = [this] {
    return cause_.kind == Cause::Kind::kFailure && rank(cause_.rank).exit->signal == 0;
  };
  while (inputs_.link != nullptr && may_follow() && group_.elapsed_s() < end_s) {
    check_hosts();
    ::poll(nullptr, 0, 20);
  }
}

void Supervisor::end_ranks() {
  signalled_at_s_ = group_.elapsed_s();
  group_.end(SIGTERM);
  enter(Phase::kStopping, std::min(kFailureGraceS, options_.grace_period_s));
}

void Supervisor::enter(Phase phase, double seconds) {
  phase_ = phase;
  deadline_s_ = group_.elapsed_s() + seconds;
  if (phase == Phase::kEnding) {
    group_.signal_descendants(SIGTERM);
    group_.signal_descendants(SIGCONT);
  }
}

void Supervisor::check_deadline() {
  if (phase_ == Phase::kKilling) {
    // Sent repeatedly, because processes can start others while they are being killed.
    group_.signal_descendants(SIGKILL);
    return;
  }
  if (suspended_ || group_.elapsed_s() < deadline_s_ || group_.empty()) return;
  if (phase_ == Phase::kStopping && cause_.kind == Cause::Kind::kSignal) {
    output_.notice(concat("killing what is left after ", options_.grace_period_s, " s"));
  }
  if (phase_ == Phase::kDumping) {
    end_ranks();
  } else if (phase_ == Phase::kLingering) {
    enter(Phase::kEnding, kEndS);
  } else {
    enter(Phase::kKilling, kGiveUpS);
  }
}

// Returns whether this launcher is needed although its ranks have ended. Node 0's launcher must pass on the others'
// news.
bool Supervisor::has_to_stay() const {
  return inputs_.link != nullptr && cause_.kind == Cause::Kind::kNone && inputs_.link->is_needed();
}

bool Supervisor::finished() const {
  if (group_.empty()) return !has_to_stay();
  return (phase_ == Phase::kKilling && group_.elapsed_s() > deadline_s_);
}

const RankProcess& Supervisor::rank(int number) const {
  const auto& ranks = group_.ranks();
  return *std::find_if(ranks.begin(), ranks.end(), [number](const auto& rank) { return rank.rank == number; });
}

std::vector<LaterFailure> Supervisor::later_failures() const {
  std::vector<LaterFailure> result;
  const double first_s = rank(cause_.rank).exit->at_s;
  for (const RankProcess& other : group_.ranks()) {
    if (other.rank == cause_.rank || !other.exit || !other.exit->failed()) continue;
    const int code = other.exit->shell_code();
    const bool ended_by_us = code == 128 + SIGTERM || code == 128 + SIGKILL;
    if (ended_by_us || other.exit->at_s - first_s > kLaterFailureS) continue;
    const LastWords words = last_words(output_.last_stderr_lines(other.rank, kReadLines));
    result.push_back({other, words.message.empty() ? "" : words.message.front()});
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.rank.exit->at_s < b.rank.exit->at_s; });
  return result;
}

bool Supervisor::leave_ranks_behind() {
  const std::vector<pid_t> left = descendants(::getpid());
  for (const pid_t pid : left) {
    output_.notice(concat("cannot kill pid ", pid, " (", process_name(pid), "): it waits inside the kernel"));
  }
  return !left.empty();
}

// Returns the rank that was the first to end with an exit code from 1 to 128 after a signal, because that rank might
// have failed to save. Returns null if there is none.
const RankProcess* Supervisor::failed_after_signal() const {
  const RankProcess* first = nullptr;
  for (const RankProcess& rank : group_.ranks()) {
    const int code = rank.exit && rank.exit->signal == 0 ? rank.exit->code : 0;
    if (code == 0 || code > 128) continue;  // 128 + n: signal n ended the rank
    if (first == nullptr || rank.exit->at_s < first->exit->at_s) first = &rank;
  }
  return first;
}

int Supervisor::report_failure(const RankProcess& first, const std::vector<LaterFailure>& later) {
  LastWords words = last_words(output_.last_stderr_lines(first.rank, kReadLines));
  if (options_.nproc == 1 && options_.nnodes == 1) {  // the lines of the only rank are right above
    if (words.is_last) words.message.clear();
    words.before.clear();
  }
  output_.notice(failure_report(first, hang_watch_.last_step(first.rank), later, words));
  return first.exit->shell_code();
}

// Reports the cause of the job's end, and returns the job's exit code.
int Supervisor::report_cause() {
  switch (cause_.kind) {
    case Cause::Kind::kNone:
      return 0;
    case Cause::Kind::kSignal: {
      const RankProcess* const failed = failed_after_signal();
      return failed == nullptr ? 128 + cause_.signal : report_failure(*failed, {});
    }
    case Cause::Kind::kStall:
    case Cause::Kind::kHang:
    case Cause::Kind::kAbsence:
      output_.notice("job failed: " + cause_.text.substr(0, cause_.text.find('\n')));
      return 1;
    case Cause::Kind::kOtherHost:
      output_.notice(verdict(cause_.code) + cause_.text);
      return cause_.code;
    case Cause::Kind::kLauncherGone:
      output_.notice("the launcher was killed: all ranks were killed too");
      return 1;
    case Cause::Kind::kFailure:
      break;
  }
  return report_failure(rank(cause_.rank), later_failures());
}

std::optional<Attempt> Supervisor::next_attempt() {
  const bool exited = cause_.kind == Cause::Kind::kFailure, absent = cause_.kind == Cause::Kind::kAbsence;
  if (!exited && !absent && cause_.kind != Cause::Kind::kStall && cause_.kind != Cause::Kind::kHang) return {};
  if (stop_signal_ != 0) return {};  // the user has asked the job to end
  JobFailure failure{.rank = cause_.rank, .any_step = hang_watch_.any_step(), .after_s = signalled_at_s_};
  if (exited) {
    const ProcessExit& exit = *rank(cause_.rank).exit;
    failure.code = exit.code;
    failure.signal = exit.signal;
  } else {
    failure.kind = absent ? JobFailure::Kind::kAbsence : JobFailure::Kind::kHang;
  }
  const RestartDecision decision = decide_restart(options_, inputs_.attempt, failure);
  if (!decision.text.empty()) output_.notice(decision.text);
  return decision.next;
}

Conclusion Supervisor::conclude() {
  output_.drain();
  await_hosts();
  if (inputs_.link != nullptr && cause_.kind == Cause::Kind::kNone) inputs_.link->tell_done();
  const bool left = leave_ranks_behind();
  const int code = report_cause();
  const auto next = left ? std::nullopt : next_attempt();
  output_.finish();
  return {code, next};
}

}  // namespace zeroshard
