#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Maps a whole regular file into memory, for reading. The constructor throws IoError if that fails, and ValueError for
// a path that is empty or contains a zero byte. If the file is truncated later, the kernel ends a process that reads
// mapped memory past the file's new end. A caller that calls check_whole() before it reads bytes() gets an IoError
// instead.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }
  // Throws IoError if the file has been truncated since it was mapped. Looks the file up by its path, because the
  // object keeps no descriptor open. (A process can need more files than it may have descriptors.) So a file that has
  // been deleted or replaced counts as not truncated.
  void check_whole() const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  std::string_view bytes_;
};

}  // namespace zeroshard
