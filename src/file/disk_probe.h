#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "file/block_queue.h"
#include "file/io.h"

namespace zeroshard {

struct DiskProbeOptions {
  int64_t file_bytes = int64_t{512} << 20;  // at most; a quarter of what is free, where that is less
  double seconds = 2;                       // of all measurements together, about; and at most, to write the file first
  int thread_count = 4;                     // where io_uring is refused
  RingSystem* ring = nullptr;               // null: threads alone
};

// What swap files in a directory would get.
struct DiskReport {
  struct Rate {
    int64_t block_bytes = 0;
    int queue_depth = 0;
    double bytes_per_second = 0;    // read and written at once, together: the mean of two measurements
    double least = 0, highest = 0;  // of these
  };

  std::string file_system;
  int64_t free_bytes = -1;  // -1: unknown
  int64_t file_bytes = 0;   // of the file that was read and written
  bool in_memory = false;   // a tmpfs
  bool direct = false;      // past the page cache
  std::string queue;        // "io_uring" or "threads"
  std::string refusal;      // why io_uring was not used, if it was asked for
  std::vector<Rate> rates;  // by block and depth
  Rate best() const;
};

// Reads and writes a file without a name in `directory` at once, as updates of states do, with several sizes of blocks
// and depths of the queue. Nothing is left. Throws IoError with the path where the directory cannot be used or has less
// than 64 MiB free.
DiskReport probe_disk(const std::string& directory, const DiskProbeOptions& options, Io& io);

}  // namespace zeroshard
