#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/process_mark.h"
#include "file/io.h"
#include "file/transfer_queue.h"

namespace zeroshard {

// An open file for memory that is swapped out: mode 0600, without a name, closed on exec. It is gone when its
// descriptor is closed, also by the process's death.
class SwapFile {
 public:
  // In the directory `path`, which must exist. Reserves `bytes`, so that a full disk is noticed here. Throws IoError
  // with path, bytes needed and free.
  SwapFile(Io& io, const std::string& path, int64_t bytes);
  // Reserves `bytes` in all; what is in the file stays. Throws IoError as above; then nothing has changed.
  void grow(int64_t bytes);
  // The space is free at once, also while a forked child or a ring that the kernel takes down still has the file open.
  ~SwapFile();
  SwapFile(SwapFile&&) = default;
  SwapFile& operator=(SwapFile&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }  // for messages
  int64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }        // past the page cache
  bool in_memory() const { return in_memory_; }  // the file system is a tmpfs: nothing leaves memory

 private:
  ProcessMark process_;  // the file of a forked child's copy is its parent's
  Io* io_;
  std::string path_;
  int64_t bytes_ = 0;
  OpenFd fd_;
  bool direct_ = false, in_memory_ = false;
};

}  // namespace zeroshard
