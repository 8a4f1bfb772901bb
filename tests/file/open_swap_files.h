#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"

// Swap files have no name: tests find them among what the process has open.
namespace zeroshard::testing {

// The swap files that this process has open in the directory, by /proc.
inline std::vector<UniqueFd> swap_files_in(const std::string& directory) {
  std::vector<UniqueFd> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(directory + "/"))
      files.emplace_back(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
  }
  return files;
}

// One in each page.
inline void flip_bits(int fd) {
  char byte = 0;
  for (int64_t at = 100; ::pread(fd, &byte, 1, at) == 1; at += 4096) {
    byte = char(byte ^ 1);
    ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
  }
}

}  // namespace zeroshard::testing
