#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "file/block_queue.h"
#include "file/io.h"

namespace zeroshard {

// Of requests to swap files.
struct RequestSizes {
  int64_t block_bytes = 0;
  int queue_depth = 0;

  bool operator==(const RequestSizes&) const = default;
};

struct RequestSizesOptions {
  std::string cache;                                              // a directory, created if missing
  RequestSizes usual;                                             // kept unless others are clearly faster
  int thread_count = 4;                                           // where io_uring is refused
  RingSystem* ring = nullptr;                                     // null: threads alone
  std::chrono::milliseconds patience = std::chrono::seconds(15);  // with another process that measures
};

// $XDG_CACHE_HOME/zeroshard, else $HOME/.cache/zeroshard; "": neither is set.
std::string cache_directory();

// The sizes that suit the disk of `directory`. They are measured once for each disk until the machine starts anew, in
// about two seconds (ten at 30 MB/s), and kept in the cache for all processes of this user, on any machine: one
// measures, the others wait for it. Throws IoError where `directory` or the cache cannot be used, or another process
// takes too long.
RequestSizes measured_sizes(const std::string& directory, const RequestSizesOptions& options, Io& io);

}  // namespace zeroshard
