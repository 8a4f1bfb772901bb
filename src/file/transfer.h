#pragma once
#include <string_view>

#include "file/io.h"

namespace zeroshard {

// All of it: continues after short writes and interruptions. Throws IoError.
void write_all(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset);

// For a descriptor that may have O_DIRECT: turns that off, and `direct` too, where the file system does not take it.
void write_all_direct(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset,
                      bool& direct);

// From `offset`, at least `needed` bytes and at most `bytes`: continues after short reads and interruptions, and as
// above where O_DIRECT does not work. Throws IoError, also when the file ends too early.
void read_at_least(Io& io, int fd, std::string_view path, void* data, int64_t needed, int64_t bytes, int64_t offset,
                   bool& direct);

// Details for the message when the file system is full; empty for any other error.
std::string space_details(Io& io, int fd, int64_t result, int64_t needed_bytes);

}  // namespace zeroshard
