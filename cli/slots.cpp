#include "slots.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

#include "base/format.h"
#include "base/host_name.h"
#include "launch/cpu_places.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::string comma_list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return {};
  return value;
}

bool is_this_host(const std::string& name) {
  const std::string full = host_name();
  return name == "localhost" || name == "127.0.0.1" || name == full || name == full.substr(0, full.find('.'));
}

// The place of `slot` in `visible`.
size_t place_of(const std::string& slot, const std::vector<std::string>& visible, const std::string& option) {
  auto found = std::find(visible.begin(), visible.end(), slot);
  const std::optional<int> index = number(slot);
  const bool uuids = std::none_of(visible.begin(), visible.end(), [](const auto& name) { return number(name); });
  if (found == visible.end() && index && uuids && size_t(*index) < visible.size()) found = visible.begin() + *index;
  if (found == visible.end()) {
    throw ValueError(concat(option, " names the GPU '", slot, "', and this host shows ",
                            visible.empty() ? "none: --nproc N starts ranks on its CPUs" : comma_list(visible)));
  }
  return size_t(found - visible.begin());
}

// Which of `visible` a filter like "localhost:0,2" names; without slots, all.
std::vector<bool> named(const std::string& filter, const std::vector<std::string>& visible, const std::string& option) {
  std::vector<bool> result(visible.size(), false);
  for (const std::string& node : split(filter, '@')) {
    const size_t colon = node.find(':');
    const std::string host = node.substr(0, colon);
    if (!is_this_host(host)) {
      throw ValueError(concat(option, " names the host '", host,
                              "', and zeroshard run starts ranks on this one (localhost): start it on each host, with "
                              "--nnodes, --node_rank and --master_addr"));
    }
    if (colon == node.npos) result.assign(visible.size(), true);
    if (colon == node.npos) continue;
    for (const std::string& slot : split(node.substr(colon + 1), ',')) result[place_of(slot, visible, option)] = true;
  }
  return result;
}

[[noreturn]] void refuse_several(const std::string& path, const std::vector<Host>& hosts) {
  std::string text =
      concat("hostfile '", path, "' has ", hosts.size(), " hosts, and zeroshard run starts ranks on one: run on each");
  // All hosts need the same number of ranks.
  const auto fewest = [](const Host& a, const Host& b) { return a.slots < b.slots; };
  const int slots = std::min_element(hosts.begin(), hosts.end(), fewest)->slots;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    text += concat("\n  ", hosts[rank].name, ": zeroshard run --nproc ", slots, " --nnodes ", hosts.size(),
                   " --node_rank ", rank, " --master_addr ", hosts[0].name, " --master_port 29500 SCRIPT ...");
  }
  throw ValueError(text);
}

}  // namespace

std::vector<std::string> chosen_gpus(const std::string& include, const std::string& exclude,
                                     const std::vector<std::string>& visible) {
  const bool excludes = include.empty();
  const std::vector<bool> listed = named(excludes ? exclude : include, visible, excludes ? "--exclude" : "--include");
  std::vector<std::string> chosen;
  for (size_t index = 0; index < visible.size(); ++index) {
    if (listed[index] != excludes) chosen.push_back(visible[index]);
  }
  if (chosen.empty()) {
    throw ValueError(concat(excludes ? "--exclude is '" + exclude : "--include is '" + include,
                            "', which leaves no GPU of ", visible.empty() ? "none" : comma_list(visible)));
  }
  return chosen;
}

Host read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ValueError("hostfile '" + path + "' cannot be read: leave --hostfile out to run on this host");
  std::vector<Host> hosts;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    std::istringstream words(line);
    std::string name, slots;
    if (!(words >> name) || name.starts_with('#')) continue;
    words >> slots;
    const std::string_view text = slots.starts_with("slots=") ? std::string_view(slots).substr(6) : "";
    const int count = number(text).value_or(0);
    const std::string place = concat("hostfile '", path, "', line ", line_number);
    if (count < 1) throw ValueError(concat(place, " is '", line, "', expected NAME slots=N"));
    if (std::any_of(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; })) {
      throw ValueError(concat(place, " names '", name, "' again"));
    }
    hosts.push_back({name, count});
  }
  if (hosts.empty()) throw ValueError("hostfile '" + path + "' names no host, expected lines NAME slots=N");
  if (hosts.size() > 1) refuse_several(path, hosts);
  if (!is_this_host(hosts[0].name)) {
    throw ValueError(concat("hostfile '", path, "' names '", hosts[0].name, "', which is not this host: run it there"));
  }
  return hosts[0];
}

std::vector<int> parse_cores(const std::string& list) {
  const std::optional<std::vector<int>> cores = parse_cpu_list(list);
  if (!cores || std::adjacent_find(cores->begin(), cores->end(), std::greater_equal()) != cores->end())
    throw ValueError("--bind_core_list is '" + list + "', expected CPUs in rising order, like 0-3,8");
  if (cores->empty()) throw ValueError("--bind_core_list is empty, expected CPUs like 0-3,8");
  return *cores;
}

}  // namespace zeroshard::cli
