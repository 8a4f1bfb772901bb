#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "file/block_queue.h"
#include "file/io.h"

namespace zeroshard {

struct DiskProbeOptions {
  // The wanted size of the file. The file takes at most a quarter of the free space, but always at least 64 MiB.
  int64_t file_bytes = int64_t{512} << 20;
  // The seconds that all measurements take together. Before that, the file is written, for at most as long, but until
  // at least 64 MiB are written.
  double seconds = 2;
  int thread_count = 4;        // threads that read and write if io_uring is refused
  RingSystem* ring = nullptr;  // null: threads read and write
};

// The results of measuring swap files in a directory.
struct DiskReport {
  struct Rate {
    int64_t block_bytes = 0;
    int queue_depth = 0;
    double bytes_per_second = 0;    // of reads and writes together; the mean of two measurements
    double least = 0, highest = 0;  // the two measurements
  };

  std::string file_system;
  int64_t free_bytes = -1;  // negative: unknown
  int64_t file_bytes = 0;   // bytes of the file that were written and then measured
  bool in_memory = false;   // whether the file system is a tmpfs or ramfs
  bool direct = false;      // whether the page cache was bypassed
  std::string queue;        // "io_uring" or "threads"
  std::string refusal;      // why the system refused io_uring; empty if it did not
  std::vector<Rate> rates;  // one for each block size and queue depth
  Rate best() const;
};

// Measures reads and writes of a file without a name in `directory`, with several block sizes and queue depths. Reads
// and writes at the same time, as an update of optimizer states does. Leaves nothing behind. Throws IoError with the
// path if the directory cannot be used or has less than 64 MiB free.
DiskReport probe_disk(const std::string& directory, const DiskProbeOptions& options, Io& io);

}  // namespace zeroshard
