#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

// Finds accesses of streams to one memory that no event orders, by vector clocks (Fidge 1988, Mattern 1989). They are
// kept when work is enqueued, so what it finds does not depend on when the work runs.
namespace zeroshard::accelerator {

// Position [s]: how much of stream s is known to be done.
using Clock = std::vector<uint64_t>;

struct Access {
  uintptr_t begin = 0, end = 0;  // bytes of device memory
  bool writes = false;
};

// Thread-safe.
class Races {
 public:
  int add_stream(std::string name);

  // Work number `seq` of a stream, called `what`.
  void enqueue(int stream, uint64_t seq, const std::string& what, const std::vector<Access>& accesses);
  // What is ordered before the next work of the stream.
  Clock clock(int stream) const;
  void stream_waits(int stream, const Clock& clock);
  // What any host thread has waited for is before what all of them enqueue later. That may hide a race of two threads
  // and never makes one up.
  void host_waits(const Clock& clock);

  // "read by copy on stream 1, not ordered with the write by fill on stream 2", each once.
  std::vector<std::string> found() const;
  void forget();

 private:
  struct Done {
    int stream = -1;
    uint64_t seq = 0;
    std::string what;
  };
  // Bytes with one history.
  struct Segment {
    uintptr_t end = 0;
    Done write;
    std::vector<Done> reads;  // since the write, the last one of each stream
  };

  void cut(uintptr_t at);
  void fill_gaps(uintptr_t begin, uintptr_t end);
  void check(const Done& now, bool writes, const Done& before, bool wrote);

  mutable std::mutex mutex_;
  std::vector<std::string> names_;
  std::vector<Clock> clocks_;
  Clock host_;
  std::map<uintptr_t, Segment> segments_;  // by begin
  std::vector<std::string> found_;
};

}  // namespace zeroshard::accelerator
