#include "memory/copy_rate.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = size_t{64} << 20;

// Copies the second half of `memory` over the first, then the first over the second, and so on until `end`, but at
// least once each. Returns the bytes that were copied.
double bytes_copied(std::vector<char>& memory, Clock::time_point end) {
  double bytes = 0;
  do {
    std::memcpy(memory.data(), memory.data() + kBytes, kBytes);
    std::memcpy(memory.data() + kBytes, memory.data(), kBytes);
    bytes += 2.0 * kBytes;
  } while (Clock::now() < end);
  return bytes;
}

}  // namespace

double copy_rate(int threads, double seconds) {
  std::vector<std::vector<char>> memory(size_t(threads), std::vector<char>(2 * kBytes, 1));
  std::vector<double> bytes(size_t(threads), 0);
  const Clock::time_point begin = Clock::now();
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  {
    std::vector<std::jthread> running;
    for (size_t i = 0; i < memory.size(); ++i)
      running.emplace_back([&, i] { bytes[i] = bytes_copied(memory[i], end); });
  }
  double sum = 0;
  for (const double each : bytes) sum += each;
  return sum / std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace zeroshard
