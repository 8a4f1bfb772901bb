#pragma once

namespace zeroshard {

// How many bytes a second `threads` copy together within this host's memory, in blocks that no cache holds: measured
// for about `seconds`. Each byte is read once and written once. Throws std::bad_alloc, std::system_error.
double copy_rate(int threads, double seconds);

}  // namespace zeroshard
