#pragma once
#include <optional>
#include <string>
#include <vector>

// Parses DeepSpeed's notation for the GPUs and CPUs of this host: "localhost:0,2" and "0-3,8".
namespace zeroshard::cli {

// `visible` has the entries of CUDA_VISIBLE_DEVICES. `include` and `exclude` name GPUs as HOST:SLOT,SLOT,... or, for
// all GPUs of a host, as HOST. Returns the entries that `include` names. If `include` is empty, returns all entries
// that `exclude` does not name. Entries are numbers or UUIDs. A SLOT is written like its entry in `visible`. If no
// entry is a number, a SLOT may also be the index of an entry. Throws ValueError for another host, for a slot that is
// not visible, and if no entry is left.
std::vector<std::string> chosen_gpus(const std::string& include, const std::string& exclude,
                                     const std::vector<std::string>& visible);

// Returns the CPUs of a list like "0-3,8". Throws ValueError if `list` is not such a list in ascending order, or is
// empty.
std::vector<int> parse_cores(const std::string& list);

}  // namespace zeroshard::cli
