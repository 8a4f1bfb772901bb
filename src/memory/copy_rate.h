#pragma once

namespace zeroshard {

// Returns how many bytes per second `threads` threads together copy within this host's memory, in blocks that are
// larger than the caches. A byte counts once, though it is read and written. Measures for about `seconds`. Throws
// std::bad_alloc and std::system_error.
double copy_rate(int threads, double seconds);

}  // namespace zeroshard
