#include "launch/hostfile.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/check.h"
#include "base/shown_text.h"
#include "launch/limits.h"

namespace zeroshard {
namespace {

constexpr size_t kLongestName = 255;

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return {};
  return value;
}

// Returns whether `name` can be the name of a host. A name must not begin with "-", because ssh would take it as an
// option.
bool is_host_name(const std::string& name) {
  const auto fits = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || std::string_view("-._:@").find(char(c)) != std::string_view::npos);
  };
  const size_t at = name.find('@');
  const bool whole = at == name.npos || (at > 0 && at + 1 < name.size() && name.find('@', at + 1) == name.npos);
  return whole && name.size() <= kLongestName && name[0] != '-' && (at == name.npos || name[at + 1] != '-') &&
         std::all_of(name.begin(), name.end(), fits);
}

std::optional<JobHost> read_line(const std::string& line) {
  constexpr std::string_view kSlots = "slots=";
  std::istringstream words(line);
  JobHost host;
  std::string slots;
  words >> host.name >> slots;
  const auto count =
      slots.starts_with(kSlots) ? whole_number(std::string_view(slots).substr(kSlots.size())) : std::optional<int>();
  if (!count || *count < 1 || *count > kMaxRanksPerHost) return {};
  host.all_slots = *count;
  for (int slot = 0; slot < *count; ++slot) host.slots.push_back(slot);
  return host;
}

// A filter of slots, as --include and --exclude have it: NAME or NAME:SLOT,SLOT, several of them separated by "@".
class Filter {
 public:
  Filter(std::string option, std::string value) : option_(std::move(option)), value_(std::move(value)) {}

  // Returns for each host which of its slots the filter names.
  std::vector<std::vector<bool>> named(const std::vector<JobHost>& hosts) const {
    std::vector<std::vector<bool>> result;
    for (const JobHost& host : hosts) result.emplace_back(size_t(host.all_slots), false);
    for (const std::string& part : parts_of(value_, '@', hosts)) {
      const auto is_whole = [&](const JobHost& host) { return host.name == part; };
      // A whole name is tried first, because the name of a host can contain colons.
      const auto whole = std::find_if(hosts.begin(), hosts.end(), is_whole);
      const size_t colon = whole != hosts.end() ? part.npos : part.rfind(':');
      const JobHost& host = find(part.substr(0, colon), hosts);
      std::vector<bool>& slots = result[size_t(&host - hosts.data())];
      if (colon == part.npos)
        slots.assign(slots.size(), true);
      else
        mark(part.substr(colon + 1), host, slots);
    }
    return result;
  }

 private:
  // Splits `text` at `separator`, but not inside a name USER@HOST of `hosts`.
  std::vector<std::string> parts_of(const std::string& text, char separator, const std::vector<JobHost>& hosts) const {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
      size_t end = text.find(separator, begin);
      for (const JobHost& host : hosts) {
        if (host.name.find(separator) == host.name.npos || text.compare(begin, host.name.size(), host.name) != 0)
          continue;
        end = text.find(separator, begin + host.name.size());
      }
      parts.push_back(text.substr(begin, end - begin));
      if (end == text.npos) break;
      begin = end + 1;
    }
    return parts;
  }

  const JobHost& find(const std::string& name, const std::vector<JobHost>& hosts) const {
    for (const JobHost& host : hosts)
      if (host.name == name) return host;
    std::vector<std::string> names;
    for (const JobHost& host : hosts) names.push_back(host.name);
    throw ValueError(concat(option_, " is ", shown_text(value_), ": the hostfile has no host '", shown_text(name),
                            "', but ", some_of(names)));
  }

  void mark(const std::string& list, const JobHost& host, std::vector<bool>& slots) const {
    for (const std::string& text : parts_of(list, ',', {})) {
      const std::optional<int> slot = whole_number(text);
      ZS_CHECK(slot && *slot < host.all_slots, option_, " is ", shown_text(value_), ": '", shown_text(text),
               "' is no slot of host ", host.name, ", which has 0 to ", host.all_slots - 1);
      slots[size_t(*slot)] = true;
    }
  }

  std::string option_, value_;
};

}  // namespace

std::vector<JobHost> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  ZS_CHECK(file, "hostfile '", path, "' cannot be read: leave --hostfile out to run on this host");
  std::vector<JobHost> hosts;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    std::string first;
    if (!(std::istringstream(line) >> first) || first.starts_with('#')) continue;
    const std::string place = concat("hostfile '", path, "', line ", line_number);
    std::optional<JobHost> host = read_line(line);
    ZS_CHECK(host, place, " is '", shown_text(line), "', expected NAME slots=N with N from 1 to ", kMaxRanksPerHost);
    ZS_CHECK(is_host_name(host->name), place, " has the name '", shown_text(host->name),
             "', expected a host or USER@HOST of letters, digits, '-', '.', '_' and ':'");
    const auto same = [&](const JobHost& other) { return other.name == host->name; };
    const auto other = std::find_if(hosts.begin(), hosts.end(), same);
    ZS_CHECK(other == hosts.end(), place, " names '", host->name, "' again, after line ", other->line,
             ": name each host once, with all its slots");
    host->line = line_number;
    hosts.push_back(*std::move(host));
  }
  ZS_CHECK(!hosts.empty(), "hostfile '", path, "' names no host, expected lines NAME slots=N");
  return hosts;
}

std::vector<JobHost> chosen_hosts(const std::vector<JobHost>& hosts, const std::string& include,
                                  const std::string& exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  ZS_CHECK(include.empty() || exclude.empty(), "give --include or --exclude, not both");
  const bool excludes = include.empty();
  const auto named = Filter(excludes ? "--exclude" : "--include", excludes ? exclude : include).named(hosts);
  std::vector<JobHost> chosen;
  for (size_t i = 0; i < hosts.size(); ++i) {
    JobHost host = hosts[i];
    std::erase_if(host.slots, [&](int slot) { return named[i][size_t(slot)] == excludes; });
    if (!host.slots.empty()) chosen.push_back(std::move(host));
  }
  ZS_CHECK(!chosen.empty(), excludes ? "--exclude is " : "--include is ", shown_text(excludes ? exclude : include),
           ", which leaves no slot of any host");
  return chosen;
}

}  // namespace zeroshard
