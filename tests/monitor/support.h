#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "file/support.h"
#include "zeroshard/metrics.h"

namespace zeroshard::testing {

// Options for files in `directory`, at a time that goes on by a second each time it is asked for.
inline MetricsOptions metrics_options(const TemporaryDirectory& directory,
                                      std::optional<int64_t> resume_step = std::nullopt) {
  MetricsOptions options;
  options.directory = directory.path();
  options.resume_step = resume_step;
  options.total_steps = 10;
  options.on_failure = [](const std::string& message) { ADD_FAILURE() << "not expected: " << message; };
  options.now = [time = 1'700'000'000.0]() mutable { return time += 1; };
  return options;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

inline std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The event files of a directory, in the order in which TensorBoard reads them.
inline std::vector<std::string> event_files(const std::string& path) {
  std::vector<std::string> names;
  for (const std::string& name : names_in(path))
    if (name.find("tfevents") != name.npos) names.push_back(path + "/" + name);
  return names;
}

}  // namespace zeroshard::testing
