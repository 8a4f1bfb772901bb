#pragma once
#include <string>
#include <vector>

namespace zeroshard {

// A host of a hostfile, and which of its slots (GPUs, or ranks on CPUs) a job uses.
struct JobHost {
  std::string name;        // HOST or USER@HOST
  int all_slots = 0;       // the N of "slots=N"
  std::vector<int> slots;  // those to use, in rising order
  int line = 0;            // of the file

  bool uses_all() const { return int(slots.size()) == all_slots; }
  std::string host() const { return name.substr(name.find('@') + 1); }  // without USER
};

// Reads lines "NAME slots=N"; empty lines and those that begin with # are comments. Throws ValueError with file and
// line for other lines, names that occur twice or are no host names, and a file without hosts.
std::vector<JobHost> read_hostfile(const std::string& path);

// The hosts that `include` names or `exclude` leaves, in the file's order, as in "host1:0,2@host2": slots 0 and 2 of
// host1, and all of host2. Give one of both, or none for all hosts. Throws ValueError for unknown hosts and slots, and
// when no slot is left.
std::vector<JobHost> chosen_hosts(const std::vector<JobHost>& hosts, const std::string& include,
                                  const std::string& exclude);

}  // namespace zeroshard
