#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// A whole regular file as memory, for reading. Throws IoError. The kernel ends a process that reads memory behind the
// end of a file: call check_whole() before each use of bytes() that comes later than the constructor.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }
  // Throws IoError if the file has been cut since. Looks at the path, because a descriptor for each file would be many:
  // a file that is deleted or has another one in its place by now is as it was.
  void check_whole() const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  std::string_view bytes_;
};

}  // namespace zeroshard
