#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Maps a whole regular file into memory, for reading. Throws IoError. The kernel ends a process that reads memory
// behind the end of a file. So call check_whole() before each use of bytes() after construction.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }
  // Throws IoError if the file has been truncated since. It checks the path, because a descriptor for each file would
  // need many descriptors. So a file that has been deleted or replaced counts as unchanged.
  void check_whole() const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  std::string_view bytes_;
};

}  // namespace zeroshard
