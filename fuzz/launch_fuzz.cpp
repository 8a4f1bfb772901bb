// Gives any bytes to a reader of the launcher: as the output of a rank, cut anywhere, as the variables of another
// launcher, or as the order that a host gets over ssh. The first byte chooses the reader.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "launch/host_order.h"
#include "launch/line_buffer.h"
#include "zeroshard/error.h"
#include "zeroshard/rank_environment.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Wherever the pipe cuts the bytes, the lines are the same.
void read_output(std::string_view bytes, size_t piece) {
  const std::string prefix = "[rank 1] ";
  zeroshard::LineBuffer whole(prefix), cut(prefix);
  zeroshard::Tail tail;
  std::string lines, same;
  whole.append(bytes, lines);
  for (size_t at = 0; at < bytes.size(); at += piece) {
    cut.append(bytes.substr(at, piece), same);
    tail.append(bytes.substr(at, piece));
  }
  require(lines == same && whole.empty() == cut.empty());
  whole.flush(lines);
  cut.flush(same);
  require(lines == same && whole.empty() && (lines.empty() || lines.back() == '\n'));
  for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) require(lines.compare(at, 9, prefix) == 0);
  const auto last = tail.lines(8);
  require(last.size() <= 8);
  for (const std::string& line : last) require(line.size() <= 503 && line.find('\n') == std::string::npos);
}

// NAME=VALUE, separated by NULs.
void read_variables(std::string_view bytes) {
  std::map<std::string, std::string> variables;
  while (!bytes.empty()) {
    const std::string_view one = bytes.substr(0, bytes.find('\0'));
    bytes.remove_prefix(std::min(bytes.size(), one.size() + 1));
    const size_t equals = one.find('=');
    if (equals != std::string_view::npos) variables[std::string(one.substr(0, equals))] = one.substr(equals + 1);
  }
  const auto find = [&](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    if (at == variables.end() || at->second.empty()) return {};
    return at->second;
  };
  try {
    const zeroshard::RankEnvironment found = zeroshard::rank_environment(find);
    require(found.rank >= 0 && found.rank < found.world_size);
    require(found.local_rank >= 0 && found.local_rank <= found.rank);
    require(found.local_world_size >= 0 && found.local_world_size <= found.world_size);
  } catch (const zeroshard::ValueError&) {
  }
}

// An order that is read is written with the same values.
void read_order(std::string_view bytes) {
  try {
    const zeroshard::HostOrder order = zeroshard::parse_order(bytes);
    const zeroshard::HostOrder again = zeroshard::parse_order(zeroshard::text_of(order));
    require(order.folder == again.folder && order.arguments == again.arguments);
    require(order.environment == again.environment);
  } catch (const zeroshard::ValueError&) {
  }
  zeroshard::signal_of_control_line(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] < 128) {
    read_output(bytes, 1 + data[0] % 64);
  } else if (data[0] < 200) {
    read_variables(bytes);
  } else {
    read_order(bytes);
  }
  return 0;
}
