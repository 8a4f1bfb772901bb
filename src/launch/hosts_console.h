#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/console_writer.h"

namespace zeroshard {

// The console of a job whose hosts are started from this host. If several launchers print the same line, the console
// shows the line once. At the job's end the console shows one of the launchers' reports.
class HostsConsole {
 public:
  // Starts threads, so it must be made after the last fork.
  explicit HostsConsole(const std::vector<std::string>& names);

  bool full() const;
  // Shows lines of stream 1 or 2 of a host, each with its newline. `foreign` says that the lines come from ssh or a
  // shell, and not from zeroshard.
  void show(size_t host, int stream, std::string_view lines, bool foreign);
  // Shows a line of the launcher on this host.
  void notice(std::string_view text);
  // Shows why the job has failed, if `code` is not 0. The reason is `own`, the report of the launcher on this host. If
  // `own` is empty, the reason is the report of host `first`. Then waits until everything is written, or until the
  // reader has stopped reading.
  void finish(size_t first, const std::string& own, int code);

 private:
  ConsoleWriter& console(int stream) const;
  // Returns the text to show, or "" if the line is held back.
  std::string shown(size_t host, std::string_view line, bool foreign);
  std::string report(size_t first) const;

  std::vector<std::string> names_, reports_;
  std::map<std::string, size_t, std::less<>> told_;  // for each line: the host that printed it first
  std::array<std::unique_ptr<ConsoleWriter>, 2> consoles_;
};

}  // namespace zeroshard
