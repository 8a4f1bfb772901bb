#include "support/accelerator/streams.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/format.h"
#include "support/random.h"

namespace zeroshard::accelerator {

namespace {

// As on CUDA, all streams of a device share one queue where CUDA_DEVICE_MAX_CONNECTIONS is 1: what the host gave to any
// of them ends before the next begins, and a collective ends only when all ranks have come to it. Read by
// set_schedule(); for eager streams.
std::atomic<bool> has_one_queue = false;

// The works of such a device take turns.
struct Lane {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t given = 0, done = 0;

  uint64_t take_turn() {
    const std::scoped_lock lock(mutex);
    return ++given;
  }
  void await_turn(uint64_t turn) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done + 1 == turn; });
  }
  void end_turn() {
    const std::scoped_lock lock(mutex);
    ++done;
    changed.notify_all();
  }
};

struct Item {
  std::function<void()> run;
  uint64_t turn = 0;  // 0: it needs none
};

thread_local int64_t host_waits_of_thread = 0;

}  // namespace

struct Streams::Queue {
  std::shared_ptr<Lane> lane;  // of all streams of the device
  StreamKey key;
  int number = 0;  // in Races
  bool eager = false;
  std::mutex mutex;
  std::condition_variable work_came, work_done;
  std::deque<Item> works;
  uint64_t enqueued = 0, done = 0, demanded = 0;
  bool held = false;
  std::exception_ptr error;  // the first
};

Streams& Streams::get() {
  static auto& streams = *new Streams();
  return streams;
}

void Streams::set_schedule(Schedule schedule, uint64_t seed) {
  for (Queue* queue : all()) wait_on_host(queue->key);
  seed_ = seed;
  schedule_ = schedule;
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  has_one_queue = connections != nullptr && std::string_view(connections) == "1";
}

StreamKey Streams::make_stream(int device, bool eager) {
  // As a pool of CUDA's streams: these in turn. A stream for each engine of a thousand tests would be a thread each,
  // and a clock with a time of each other one.
  constexpr size_t kPooled = 32;
  static std::map<std::pair<int, bool>, std::deque<StreamKey>> pools;  // under the mutex
  StreamKey key{device, 0};
  {
    const std::scoped_lock lock(mutex_);
    std::deque<StreamKey>& pool = pools[{device, eager}];
    const bool full = pool.size() == kPooled;
    key.id = full ? pool.front().id : next_id_++;
    if (full) pool.pop_front();
    pool.push_back(key);
  }
  Queue& own = queue(key);
  const std::scoped_lock lock(own.mutex);
  own.eager = eager;
  own.held = false;  // by a test before
  own.error = nullptr;
  own.work_came.notify_one();
  return key;
}

Streams::Queue& Streams::queue(StreamKey stream) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<Queue>& queue = queues_[stream];
  if (!queue) {
    queue = std::make_unique<Queue>();
    for (const auto& [key, other] : queues_)
      if (key.device == stream.device && other->lane) queue->lane = other->lane;
    if (!queue->lane) queue->lane = std::make_shared<Lane>();
    queue->key = stream;
    queue->number = races_.add_stream(concat("stream ", stream.device, ":", stream.id));
    std::thread([this, own = queue.get()] { run(*own); }).detach();
  }
  return *queue;
}

void Streams::run(Queue& queue) {
  at::set_num_threads(1);
  std::unique_lock lock(queue.mutex);
  while (true) {
    queue.work_came.wait(lock, [&] {
      const bool lazy = schedule_ == Schedule::kLazy && !queue.eager;
      return !queue.held && queue.done < (lazy ? queue.demanded : queue.enqueued);
    });
    Item work = std::move(queue.works.front());
    queue.works.pop_front();
    testing::Random random(seed_ * 1'000'003 + static_cast<uint64_t>(queue.number) * 7919 + queue.done);
    lock.unlock();
    // One work in eight sleeps: those between are overtaken or overtake as well, and a sleep takes longer than it says.
    if (schedule_ == Schedule::kLate && !queue.eager && random.between(0, 7) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 200)));
    if (work.turn != 0) queue.lane->await_turn(work.turn);
    std::exception_ptr error;
    try {
      work.run();
    } catch (...) {
      error = std::current_exception();
    }
    if (work.turn != 0) queue.lane->end_turn();
    work.run = nullptr;
    lock.lock();
    if (error && !queue.error) queue.error = error;
    ++queue.done;
    queue.work_done.notify_all();
  }
}

void Streams::enqueue(StreamKey stream, WorkKind kind, const std::string& what, const std::vector<Access>& accesses,
                      std::function<void()> work) {
  if (kind == WorkKind::kLaunch) ++launches_;
  if (kind == WorkKind::kCopy) ++copies_;
  Queue& own = queue(stream);
  const std::scoped_lock lock(own.mutex);
  own.works.push_back({std::move(work), has_one_queue ? own.lane->take_turn() : 0});
  races_.enqueue(own.number, ++own.enqueued, what, accesses);
  own.work_came.notify_one();
}

Mark Streams::record(StreamKey stream) {
  Queue& own = queue(stream);
  const std::scoped_lock lock(own.mutex);
  return {stream, own.enqueued, races_.clock(own.number)};
}

void Streams::wait_on_stream(StreamKey stream, const Mark& mark) {
  ++event_waits_;
  if (stream == mark.stream) return;
  Queue& own = queue(stream);
  races_.stream_waits(own.number, mark.clock);
  enqueue(stream, WorkKind::kOther, "wait", {}, [this, mark] { await(mark); });
}

bool Streams::is_done(const Mark& mark) {
  Queue& own = queue(mark.stream);
  {
    const std::scoped_lock lock(own.mutex);
    if (own.done >= mark.seq) return true;
  }
  demand(mark);  // else somebody who polls would wait for ever
  return false;
}

void Streams::demand(const Mark& mark) {
  Queue& own = queue(mark.stream);
  const std::scoped_lock lock(own.mutex);
  own.demanded = std::max(own.demanded, mark.seq);
  own.work_came.notify_one();
}

void Streams::await(const Mark& mark) {
  demand(mark);
  Queue& own = queue(mark.stream);
  std::unique_lock lock(own.mutex);
  own.work_done.wait(lock, [&] { return own.done >= mark.seq; });
}

void Streams::wait_on_host(const Mark& mark) {
  ++host_waits_;
  ++host_waits_of_thread;
  await(mark);
  races_.host_waits(mark.clock);
  Queue& own = queue(mark.stream);
  std::exception_ptr error;
  {
    const std::scoped_lock lock(own.mutex);
    std::swap(error, own.error);
  }
  if (error) std::rethrow_exception(error);
}

void Streams::wait_on_host(StreamKey stream) {
  wait_on_host(record(stream));
}

void Streams::wait_for_device(int device) {
  for (Queue* queue : all())
    if (queue->key.device == device) wait_on_host(queue->key);
}

void Streams::hold(StreamKey stream) {
  Queue& own = queue(stream);
  const std::scoped_lock lock(own.mutex);
  own.held = true;
}

void Streams::release(StreamKey stream) {
  Queue& own = queue(stream);
  const std::scoped_lock lock(own.mutex);
  own.held = false;
  own.work_came.notify_one();
}

Counts Streams::counts() const {
  return {launches_, copies_, event_waits_, host_waits_};
}

int64_t Streams::host_waits_of_this_thread() {
  return host_waits_of_thread;
}

void Streams::reset_counts() {
  launches_ = copies_ = event_waits_ = host_waits_ = 0;
}

std::vector<Streams::Queue*> Streams::all() {
  const std::scoped_lock lock(mutex_);
  std::vector<Queue*> found;
  for (const auto& [key, queue] : queues_) found.push_back(queue.get());
  return found;
}

}  // namespace zeroshard::accelerator
