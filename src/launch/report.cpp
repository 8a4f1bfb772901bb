#include "launch/report.h"

#include <csignal>
#include <iomanip>
#include <set>
#include <sstream>

#include "base/host_name.h"

namespace zeroshard {
namespace {

std::string seconds_text(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << seconds << " s";
  return out.str();
}

std::string who(const RankProcess& rank) {
  std::ostringstream out;
  out << "rank " << rank.rank << " (pid " << rank.pid << " on host " << host_name() << ")";
  return out.str();
}

std::string how(const ProcessExit& exit) {
  if (exit.signal != 0) return "was killed by " + signal_name(exit.signal);
  return "ended with exit code " + std::to_string(exit.code);
}

// Removes from `message` the name of the rank that reported it, which is another rank than the one that failed.
std::string without_reporter(const std::string& message) {
  return message.substr(0, message.rfind(" [reported by rank "));
}

}  // namespace

std::string describe_exit(const RankProcess& rank) {
  return who(rank) + " " + how(*rank.exit) + " after " + seconds_text(rank.exit->at_s);
}

bool was_asked_to_stop(int code) {
  return code == 128 + SIGTERM || code == 128 + SIGINT;
}

std::string verdict(int code) {
  return was_asked_to_stop(code) ? "job stopped: " : "job failed: ";
}

std::string describe_stop(const RankProcess& rank, double seconds) {
  std::string text = who(rank) + " has been stopped by " + signal_name(rank.stop_signal) + " for ";
  text += seconds_text(seconds);
  if (rank.stop_signal == SIGTTIN) text += " (it wants to read the terminal, which ranks cannot)";
  return text;
}

std::string failure_report(const RankProcess& first, std::optional<int64_t> last_step,
                           const std::vector<LaterFailure>& later, const LastWords& words) {
  std::ostringstream out;
  out << verdict(first.exit->code) << describe_exit(first);
  if (last_step) out << ", last step " << *last_step;
  if (was_asked_to_stop(first.exit->code)) {
    out << ", as ranks do that a signal has asked to stop\n";
    return out.str();
  }
  out << "\n";
  if (first.exit->signal == SIGKILL) {
    out << "  the launcher did not send it: unless a person did, the kernel did for lack of memory (see dmesg)\n";
  }
  // The error comes after the lines before it, as in a traceback, so that it is closer to the end of the screen.
  if (!words.before.empty()) out << "  the end of its stderr:\n";
  for (const std::string& line : words.before) out << "    " << line << "\n";
  std::set<std::string> told;
  for (const std::string& line : words.message) told.insert(without_reporter(line));
  for (const std::string& line : words.message) out << "  " << line << "\n";
  for (const LaterFailure& failure : later) {
    out << "  later: " << describe_exit(failure.rank);
    if (!failure.message.empty() && told.insert(without_reporter(failure.message)).second)
      out << ": " << failure.message;
    out << "\n";
  }
  return out.str();
}

}  // namespace zeroshard
