#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "file/block_queue.h"
#include "file/io.h"

namespace zeroshard {

// The sizes of requests to swap files.
struct RequestSizes {
  int64_t block_bytes = 0;
  int queue_depth = 0;

  bool operator==(const RequestSizes&) const = default;
};

struct RequestSizesOptions {
  std::string cache;                                              // a directory, created if missing
  RequestSizes usual;                                             // used unless other sizes are clearly faster
  int thread_count = 4;                                           // used if io_uring is refused
  RingSystem* ring = nullptr;                                     // null: only threads
  std::chrono::milliseconds patience = std::chrono::seconds(15);  // longest wait for another process that measures
};

// Returns $XDG_CACHE_HOME/zeroshard, else $HOME/.cache/zeroshard; "" if neither is set.
std::string cache_directory();

// Returns the sizes that suit the disk of `directory`. They are measured once per disk until the machine restarts, in
// about two seconds (ten at 30 MB/s). The cache keeps them for all processes of this user on any machine: one process
// measures, the others wait for it. Throws IoError if `directory` or the cache cannot be used, or if another process
// takes too long.
RequestSizes measured_sizes(const std::string& directory, const RequestSizesOptions& options, Io& io);

}  // namespace zeroshard
