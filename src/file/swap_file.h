#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/process_mark.h"
#include "file/io.h"
#include "file/transfer_queue.h"

namespace zeroshard {

// An open file for swapped-out memory. It has mode 0600 and no name. exec() closes it. The file system deletes the file
// when no process has it open any more.
class SwapFile {
 public:
  // Creates the file in the existing directory `path`. Reserves `bytes`, so that a full disk causes an error now. If
  // the file system cannot reserve space, only checks that `bytes` are free. Throws IoError with the path and, if the
  // reservation fails, with the bytes needed and the bytes free.
  SwapFile(Io& io, const std::string& path, int64_t bytes);
  // Lengthens the file to `bytes`, reserves the added part as the constructor does, and keeps the contents. If grow()
  // throws the IoError of a failed reservation, nothing has changed.
  void grow(int64_t bytes);
  // Frees the space immediately, even if the file stays open in a forked child or in an io_uring ring that the kernel
  // is still closing. Does nothing to the file in a forked child.
  ~SwapFile();
  SwapFile(SwapFile&&) = default;
  SwapFile& operator=(SwapFile&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }  // for messages
  int64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }  // whether the file system accepts O_DIRECT
  // Returns whether the file system is a tmpfs or ramfs, which keeps files in memory.
  bool on_tmpfs() const { return on_tmpfs_; }

 private:
  ProcessMark process_;  // a forked child must not touch the file of its parent
  Io* io_;
  std::string path_;
  int64_t bytes_ = 0;
  OpenFd fd_;
  bool direct_ = false, on_tmpfs_ = false;
};

}  // namespace zeroshard
