#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Maps a whole regular file into memory, for reading. Throws IoError, or ValueError for an empty path or one with a
// zero byte. If the file is truncated later, the kernel ends a process that reads mapped memory past the file's new
// end. A caller that calls check_whole() before it reads bytes() gets an IoError instead.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }
  // Throws IoError if the file has been truncated since it was mapped. Examines the file at the path, because open
  // descriptors for all files would be too many. So a file that has been deleted or replaced counts as not truncated.
  void check_whole() const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  std::string_view bytes_;
};

}  // namespace zeroshard
