#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/console_writer.h"

namespace zeroshard {

// The console of a job whose hosts are started from here. What several launchers say alike is shown once, and of their
// reports, which come at the job's end, one.
class HostsConsole {
 public:
  // Starts threads.
  explicit HostsConsole(const std::vector<std::string>& names);

  bool full() const;
  // Lines of stream 1 or 2 of a host, each with its newline. `foreign`: they are those of ssh or of a shell.
  void show(size_t host, int stream, std::string_view lines, bool foreign);
  // A line of the launcher here.
  void notice(std::string_view text);
  // Shows why the job has failed, if `code` is not 0, as host `first` says, or the launcher here in `own` if that is
  // not empty. Then waits for the reader.
  void finish(size_t first, const std::string& own, int code);

 private:
  ConsoleWriter& console(int stream) const;
  // "" if it is held back.
  std::string shown(size_t host, std::string_view line, bool foreign);
  std::string report(size_t first) const;

  std::vector<std::string> names_, reports_;
  std::map<std::string, size_t, std::less<>> told_;  // by which host first
  std::array<std::unique_ptr<ConsoleWriter>, 2> consoles_;
};

}  // namespace zeroshard
