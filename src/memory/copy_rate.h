#pragma once

namespace zeroshard {

// Measures for about `seconds` how many bytes per second `threads` copy together within this host's memory, in blocks
// that are larger than the caches. Each byte is read once and written once. Throws std::bad_alloc and
// std::system_error.
double copy_rate(int threads, double seconds);

}  // namespace zeroshard
