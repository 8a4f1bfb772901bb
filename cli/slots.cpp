#include "slots.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <sstream>
#include <string_view>

#include "base/format.h"
#include "base/interface.h"
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

// Returns the index of `slot` in `visible`. Throws ValueError, which names `option`, if `slot` is not visible.
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

// Returns for each entry of `visible` whether `filter` names it. "localhost:0,2" names the slots 0 and 2 of this host.
// "localhost", without slots, names every entry. Throws ValueError for another host, and for a slot that is not
// visible.
std::vector<bool> named(const std::string& filter, const std::vector<std::string>& visible, const std::string& option) {
  std::vector<bool> result(visible.size(), false);
  for (const std::string& node : split(filter, '@')) {
    const size_t colon = node.find(':');
    const std::string host = node.substr(0, colon);
    if (!is_this_host(host)) {
      throw ValueError(concat(option, " names the host '", host,
                              "', which is not this one (localhost): name several hosts in a --hostfile"));
    }
    if (colon == node.npos) result.assign(visible.size(), true);
    if (colon == node.npos) continue;
    for (const std::string& slot : split(node.substr(colon + 1), ',')) result[place_of(slot, visible, option)] = true;
  }
  return result;
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
                            "', which leaves no GPU",
                            visible.empty() ? ": this host shows none. --nproc N starts ranks on its CPUs"
                                            : concat(" of ", comma_list(visible), ": leave at least one")));
  }
  return chosen;
}

std::vector<int> parse_cores(const std::string& list) {
  const std::optional<std::vector<int>> cores = parse_cpu_list(list);
  if (!cores || std::adjacent_find(cores->begin(), cores->end(), std::greater_equal()) != cores->end())
    throw ValueError("--bind_core_list is '" + list + "', expected CPUs in rising order, like 0-3,8");
  if (cores->empty()) throw ValueError("--bind_core_list is empty, expected CPUs like 0-3,8");
  return *cores;
}

}  // namespace zeroshard::cli
