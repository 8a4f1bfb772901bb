#pragma once
#include <string_view>

#include "file/io.h"

namespace zeroshard {

// Writes all bytes to a descriptor that does not have O_DIRECT. Continues after short writes and interruptions. Throws
// IoError for other failures.
void write_all(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset);

// Works like write_all(), for a descriptor that has O_DIRECT if `direct` is true. If the file system does not accept a
// direct write, turns O_DIRECT off for the descriptor, sets `direct` to false and continues.
void write_all_direct(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset,
                      bool& direct);

// Reads at least `needed` and at most `bytes` bytes from `offset` on. Continues after short reads and interruptions,
// and turns off O_DIRECT as write_all_direct() does. Throws IoError, also if the file ends before `needed` bytes are
// read.
void read_at_least(Io& io, int fd, std::string_view path, void* data, int64_t needed, int64_t bytes, int64_t offset,
                   bool& direct);

// Returns details for an error message if `result` says that the file system is full or the user's quota is exceeded.
// Returns "" for any other error.
std::string space_details(Io& io, int fd, int64_t result, int64_t needed_bytes);

}  // namespace zeroshard
