#include "launch/job_hosts.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "base/format.h"
#include "launch/hostfile.h"
#include "launch/hosts_console.h"
#include "launch/report.h"
#include "launch/taken_signals.h"

namespace zeroshard {
namespace {

using JobClock = std::chrono::steady_clock;
constexpr double kBeatEveryS = 1;
constexpr double kBeginS = 60;  // time from the start of ssh until zeroshard must run on the host
// The time in which the launchers tell each other of a failure, before all hosts are signalled.
constexpr double kTellS = 1;
constexpr double kEndS = 25;    // added to the grace period; by then, launchers that were told to end have ended
constexpr double kCloseS = 12;  // time from the end of a host's connection until its launcher has ended
constexpr int kRoundMs = 200;

double s_since_begin(JobClock::time_point begin) {
  return std::chrono::duration<double>(JobClock::now() - begin).count();
}

// The first failure of the job. Later signals do not change it.
struct Failure {
  size_t host = 0;
  std::string own;          // the report of the launcher on this host; "" if the failed host itself has reported
  std::optional<int> code;  // exit code of the job; unset after a signal
  bool could_not_start = false;
  double after_s = 0;
};

class JobOfHosts {
 public:
  JobOfHosts(const std::vector<HostStart>& hosts, double grace_period_s, const TakenSignals& signals)
      : signals_(::signalfd(-1, &signals.taken(), SFD_CLOEXEC | SFD_NONBLOCK)), grace_period_s_(grace_period_s) {
    if (!signals_) throw_errno("signalfd");
    for (const HostStart& host : hosts) hosts_.emplace_back(host, signals.old_mask());
    console_.emplace(names_of(hosts));
  }

  JobEnd run() {
    while (!is_over()) {
      wait();
      handle_signals();
      beat();
      for (size_t host = 0; host < hosts_.size(); ++host) look_at(host);
      end_others();
    }
    return conclude();
  }

 private:
  void wait() {
    std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
    const bool reads = !console_->full();
    for (const HostConnection& host : hosts_)
      if (!host.is_over()) host.add_to(fds, reads);
    ::poll(fds.data(), fds.size(), kRoundMs);
  }

  void look_at(size_t number) {
    HostConnection& host = hosts_[number];
    if (host.is_over()) return;
    host.look();
    if (!console_->full()) pass_on(number);
    while (host.is_over() && pass_on(number)) {
    }
    if (host.is_over() && host.code() != 0) note_failure(number);
  }

  // Shows the lines of a host that have come. Returns whether anything has come.
  bool pass_on(size_t number) {
    HostConnection& host = hosts_[number];
    bool has_any = false;
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      const bool has_begun = host.has_begun();
      const std::optional<std::string> lines = host.read(stream);
      if (lines) console_->show(number, stream, *lines, hosts_.size() > 1 || !has_begun);
      has_any = has_any || lines;
    }
    return has_any;
  }

  // Notes the failure of a host, if it is the first. After a signal, a host that has told no exit code does not count
  // as failed, because stop() kills the connections to hosts on which zeroshard has not begun.
  void note_failure(size_t number) {
    if (stop_signal_ != 0 && !hosts_[number].code()) return;
    note_first({number, loss_of(hosts_[number]), hosts_[number].code()});
  }

  void note_first(Failure failure) {
    if (first_) return;
    if (failure.code) failure.own.clear();  // the failed host itself says why
    if (stop_signal_ == 0 && !failure.code) failure.code = 1;
    if (stop_signal_ != 0) failure.code.reset();
    failure.could_not_start = !hosts_[failure.host].has_begun();
    failure.after_s = s_since_begin(begin_);
    // Ranks that were asked to stop may still save, so they get no second signal, which would kill them.
    const bool is_stopping = stop_signal_ != 0 || was_asked_to_stop(*failure.code);
    if (!is_stopping) ends_at_s_ = failure.after_s + kTellS;
    if (!kills_at_s_) kills_at_s_ = failure.after_s + kTellS + grace_period_s_ + kEndS;
    first_ = std::move(failure);
  }

  void handle_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (stops(signal)) stop(signal);
      for (HostConnection& host : hosts_) host.send(concat("signal ", signal));
      if (signal == SIGTSTP) suspend();
    }
  }

  void stop(int signal) {
    stop_signal_ = signal;
    if (!kills_at_s_) kills_at_s_ = s_since_begin(begin_) + grace_period_s_ + kEndS;
    for (HostConnection& host : hosts_)
      if (!host.has_begun()) host.kill();
  }

  // Sends the signal that is queued for the hosts, and then suspends this process.
  void suspend() {
    for (HostConnection& host : hosts_) host.look();
    ::raise(SIGSTOP);
  }

  void beat() {
    if (s_since_begin(begin_) < beats_at_s_) return;
    beats_at_s_ = s_since_begin(begin_) + kBeatEveryS;
    for (HostConnection& host : hosts_) host.send("beat");
  }

  // Notes a failure if zeroshard has not begun on a host in time. After a failure or a signal, ends the hosts in
  // stages, because some might not end by themselves. First sends SIGTERM (only after a failure), then closes the
  // connections, and then kills the processes that hold them.
  void end_others() {
    const double now = s_since_begin(begin_);
    for (size_t number = 0; now >= kBeginS && stop_signal_ == 0 && number < hosts_.size(); ++number) {
      const HostConnection& host = hosts_[number];
      if (!host.has_begun() && !host.is_over()) note_first({number, loss_of(host), {}});
    }
    if (ends_at_s_ && now >= *ends_at_s_) {
      ends_at_s_.reset();
      for (HostConnection& host : hosts_) host.has_begun() ? host.send(concat("signal ", SIGTERM)) : host.kill();
    }
    if (!kills_at_s_ || now < *kills_at_s_) return;
    for (HostConnection& host : hosts_) host.close_input();
    if (now >= *kills_at_s_ + kCloseS)
      for (HostConnection& host : hosts_) host.kill();
  }

  bool is_over() const {
    return std::all_of(hosts_.begin(), hosts_.end(), [](const HostConnection& host) { return host.is_over(); });
  }

  // Returns the exit code of the job after a signal. If a host has a code from 1 to 128, a rank has failed there after
  // the signal, and the function returns that code. Otherwise returns 0 if all hosts ended with 0, and the code of the
  // signal if not.
  int code_after_stop() const {
    int code = 0;
    for (const HostConnection& host : hosts_) {
      const int own = host.code().value_or(128 + stop_signal_);
      if (own != 0 && (code == 0 || own <= 128)) code = own;
    }
    return code;
  }

  JobEnd conclude() {
    const Failure first = first_.value_or(Failure{});
    JobEnd end{.code = first.code          ? *first.code
                       : stop_signal_ != 0 ? code_after_stop()
                                           : 0,
               .has_failed = first_ && stop_signal_ == 0,
               .could_not_start = first.could_not_start,
               .lost = {},
               .after_s = first.after_s};
    for (size_t number = 0; first_ && number < hosts_.size(); ++number) {
      const HostConnection& host = hosts_[number];
      if (host.code() || (number != first.host && !host.has_begun() && host.was_killed())) continue;
      end.lost.push_back(number);
      end.can_still_run = end.can_still_run || host.has_begun();
    }
    console_->finish(first.host, first.own, end.code);
    return end;
  }

  static std::string loss_of(const HostConnection& host) {
    const std::string words = host.last_words();
    return concat("job failed: host ", host.name(),
                  host.has_begun() ? " is gone: its connection has ended"
                  : host.is_over() ? " could not start its ranks"
                                   : concat(" has not started zeroshard within ", kBeginS, " s"),
                  words.empty() ? "" : concat(": ", words));
  }

  UniqueFd signals_;
  double grace_period_s_;
  const JobClock::time_point begin_ = JobClock::now();
  std::deque<HostConnection> hosts_;
  std::optional<HostsConsole> console_;
  std::optional<Failure> first_;
  int stop_signal_ = 0;  // the last signal by which the user asked the job to end; 0: none
  double beats_at_s_ = 0;
  std::optional<double> ends_at_s_, kills_at_s_;
};

}  // namespace

JobEnd launch_on_hosts(const std::vector<HostStart>& hosts, double grace_period_s, const TakenSignals& signals) {
  ::signal(SIGPIPE, SIG_IGN);
  return JobOfHosts(hosts, grace_period_s, signals).run();
}

}  // namespace zeroshard
