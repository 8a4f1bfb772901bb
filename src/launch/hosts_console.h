#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/console_writer.h"

namespace zeroshard {

// The console of a job whose hosts are started from this host. If launchers of several hosts print the same line that
// begins with "[zeroshard] ", the console shows the line once. With several hosts, the console holds back the
// launchers' final reports, and shows one of them at the job's end.
class HostsConsole {
 public:
  // Starts threads, so it must be made after the last fork.
  explicit HostsConsole(const std::vector<std::string>& names);

  bool full() const;
  // Shows lines of stream 1 or 2 of a host, each with its newline. `foreign` says that lines can come from ssh or a
  // shell, so that each line gets the host's name in front, unless it begins with "[". Lines that begin with
  // "zeroshard: " always get the name.
  void show(size_t host, int stream, std::string_view lines, bool foreign);
  // Shows a line of the launcher on this host.
  void notice(std::string_view text);
  // If `code` is not 0, shows a report of why the job has failed. It is `own`, the report of the launcher on this host.
  // If `own` is empty, it is the longest report of the failure that host `first` has reported, or of another failure if
  // `first` has reported none. Then waits until everything is written, or until the reader has stopped reading.
  void finish(size_t first, const std::string& own, int code);

 private:
  ConsoleWriter& console(int stream) const;
  // Returns the text to show, or "" if the line is held back or has been shown for another host.
  std::string shown(size_t host, std::string_view line, bool foreign);
  std::string report(size_t first) const;

  std::vector<std::string> names_, reports_;
  std::map<std::string, size_t, std::less<>> told_;  // for each line: the host that printed it first
  std::array<std::unique_ptr<ConsoleWriter>, 2> consoles_;
};

}  // namespace zeroshard
