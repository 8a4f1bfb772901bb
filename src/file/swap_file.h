#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/process_mark.h"
#include "file/io.h"
#include "file/transfer_queue.h"

namespace zeroshard {

// An open file for swapped-out memory. It has mode 0600 and no name. exec() closes it. The file is deleted when its
// descriptor is closed, also by the process's death.
class SwapFile {
 public:
  // Creates the file in the existing directory `path`. Reserves `bytes`, so that a full disk causes an error now.
  // Throws IoError with the path, the bytes needed and the bytes free.
  SwapFile(Io& io, const std::string& path, int64_t bytes);
  // Reserves `bytes` in all and keeps the contents. If it throws (the same IoError as the constructor), nothing has
  // changed.
  void grow(int64_t bytes);
  // Frees the space at once, even if a forked child still has the file open, or an io_uring ring that the kernel is
  // still closing has it open.
  ~SwapFile();
  SwapFile(SwapFile&&) = default;
  SwapFile& operator=(SwapFile&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }  // for messages
  int64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }        // whether the page cache is bypassed
  bool in_memory() const { return in_memory_; }  // whether the file system is a tmpfs, so that nothing leaves memory

 private:
  ProcessMark process_;  // a forked child must not touch the file of its parent
  Io* io_;
  std::string path_;
  int64_t bytes_ = 0;
  OpenFd fd_;
  bool direct_ = false, in_memory_ = false;
};

}  // namespace zeroshard
