#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/accelerator/races.h"

// Streams of a simulated device: queues of work, each with a thread that does it in order.
namespace zeroshard::accelerator {

// When the work of a stream runs.
enum class Schedule {
  kEager,  // at once
  kLate,   // after seeded random delays
  kLazy    // not before somebody waits for it: a wait that is missing shows
};

struct StreamKey {
  int device = 0;
  int64_t id = 0;  // 0: the default stream of the device
  auto operator<=>(const StreamKey&) const = default;
};

// A point in a stream: all work before it.
struct Mark {
  StreamKey stream;
  uint64_t seq = 0;
  Clock clock;
};

// How often each happened, on all streams.
struct Counts {
  int64_t launches = 0;  // of operators
  int64_t copies = 0;
  int64_t event_waits = 0;  // of streams
  int64_t host_waits = 0;   // of host threads, for a stream, event or device
};

enum class WorkKind { kLaunch, kCopy, kOther };

// Thread-safe. Lives as long as the process: its threads cannot be joined after main.
class Streams {
 public:
  static Streams& get();

  // For streams that exist and for those to come. Waits until all are idle.
  void set_schedule(Schedule schedule, uint64_t seed = 0);

  // Streams of collectives are eager in every schedule: others wait for their peers on other devices.
  StreamKey make_stream(int device, bool eager = false);

  void enqueue(StreamKey stream, WorkKind kind, const std::string& what, const std::vector<Access>& accesses,
               std::function<void()> work);
  Mark record(StreamKey stream);
  void wait_on_stream(StreamKey stream, const Mark& mark);
  bool is_done(const Mark& mark);

  // These rethrow what the work of the stream has thrown.
  void wait_on_host(const Mark& mark);
  void wait_on_host(StreamKey stream);
  void wait_for_device(int device);

  // The stream does no work until it is released, even if somebody waits.
  void hold(StreamKey stream);
  void release(StreamKey stream);

  Counts counts() const;
  static int64_t host_waits_of_this_thread();
  void reset_counts();
  Races& races() { return races_; }

 private:
  struct Queue;

  Streams() = default;
  Queue& queue(StreamKey stream);
  void run(Queue& queue);
  void demand(const Mark& mark);
  void await(const Mark& mark);
  std::vector<Queue*> all();

  mutable std::mutex mutex_;  // of the map, the schedule and the next id
  std::map<StreamKey, std::unique_ptr<Queue>> queues_;
  std::atomic<Schedule> schedule_ = Schedule::kEager;
  std::atomic<uint64_t> seed_ = 0;
  int64_t next_id_ = 1;
  std::atomic<int64_t> launches_ = 0, copies_ = 0, event_waits_ = 0, host_waits_ = 0;
  Races races_;
};

}  // namespace zeroshard::accelerator
