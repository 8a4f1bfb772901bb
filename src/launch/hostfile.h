#pragma once
#include <string>
#include <vector>

namespace zeroshard {

// A host of a hostfile, and the slots that a job uses on it. A slot is a GPU, or a rank on CPUs.
struct JobHost {
  std::string name;        // HOST or USER@HOST
  int all_slots = 0;       // the number N of "slots=N"
  std::vector<int> slots;  // the slots that the job uses, in ascending order
  int line = 0;            // line number in the file

  bool uses_all() const { return int(slots.size()) == all_slots; }
  std::string host() const { return name.substr(name.find('@') + 1); }  // returns the name without USER
};

// Returns the names of hosts, each of which has a member `name`.
template <typename Host>
std::vector<std::string> names_of(const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  return names;
}

// Reads the lines "NAME slots=N" of a hostfile. Ignores empty lines, lines that begin with #, and text after "slots=N".
// Throws ValueError with file and line for any other line, and for a name that occurs twice or is no host name. Also
// throws ValueError if the file cannot be read or names no host.
std::vector<JobHost> read_hostfile(const std::string& path);

// Returns the hosts and slots that `include` names, or that `exclude` does not name, in the file's order. At most one
// of the two texts may be given. Without them, all hosts are returned. "host1:0,2@host2" means slots 0 and 2 of host1,
// and all slots of host2. Throws ValueError for both texts, for unknown hosts and slots, and if no slot is left.
std::vector<JobHost> chosen_hosts(const std::vector<JobHost>& hosts, const std::string& include,
                                  const std::string& exclude);

}  // namespace zeroshard
