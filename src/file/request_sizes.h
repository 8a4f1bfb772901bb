#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "file/block_queue.h"
#include "file/io.h"

namespace zeroshard {

// The most bytes of one request to a swap file, and the most requests that run at a time.
struct RequestSizes {
  int64_t block_bytes = 0;
  int queue_depth = 0;

  bool operator==(const RequestSizes&) const = default;
};

struct RequestSizesOptions {
  std::string cache;                                              // a directory, which is created if it is missing
  RequestSizes usual;                                             // the sizes to use if no others are clearly faster
  int thread_count = 4;                                           // threads that read and write if io_uring is refused
  RingSystem* ring = nullptr;                                     // null: threads read and write
  std::chrono::milliseconds patience = std::chrono::seconds(15);  // the longest wait for another process that measures
};

// Returns $XDG_CACHE_HOME/zeroshard or, if that variable has no absolute path, $HOME/.cache/zeroshard. Returns "" if
// neither variable has an absolute path.
std::string cache_directory();

// Returns the sizes that suit the disk of `directory`. They are measured once for each disk until the machine restarts.
// A measurement takes about two seconds, or about ten if the disk moves only 30 MB/s. The cache keeps the sizes for all
// processes of this user. One process measures, and the others wait for it. Throws IoError if `directory` or the cache
// cannot be used, or if another process takes longer than `patience`. Also throws what check_interrupt() throws during
// such a wait.
RequestSizes measured_sizes(const std::string& directory, const RequestSizesOptions& options, Io& io);

}  // namespace zeroshard
