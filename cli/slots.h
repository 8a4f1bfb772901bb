#pragma once
#include <optional>
#include <string>
#include <vector>

// DeepSpeed's words for the GPUs and CPUs of this host: "localhost:0,2" and "0-3,8".
namespace zeroshard::cli {

// The entries of CUDA_VISIBLE_DEVICES that are left: those that `include` names, or all but those that `exclude` names.
// A slot is an entry as it is written there, a number or a UUID; where the entries are UUIDs, also a number from 0.
// Throws ValueError for another host, and for a slot that is not visible.
std::vector<std::string> chosen_gpus(const std::string& include, const std::string& exclude,
                                     const std::vector<std::string>& visible);

// "0-3,8" as CPUs in rising order. Throws ValueError.
std::vector<int> parse_cores(const std::string& list);

}  // namespace zeroshard::cli
