#include "comm/local_comm.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/align.h"
#include "base/check.h"
#include "comm/direct_comm.h"

namespace zeroshard {
namespace {

constexpr std::align_val_t kPageAlignment{4096};

struct Freer {
  void operator()(void* memory) const { ::operator delete(memory, kPageAlignment); }
};
using Buffer = std::unique_ptr<void, Freer>;

Buffer zeroed(size_t bytes) {
  Buffer buffer(::operator new(bytes > 0 ? bytes : 1, kPageAlignment));
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

// State that outlives a rank. Peers can still read the memory of a rank whose thread has ended, as they can read shared
// memory of a process that has ended.
struct LocalWorld {
  explicit LocalWorld(int world_size) : control(zeroed(ControlBlock::bytes(world_size))) {
    ControlBlock::create(control.get(), world_size);
  }
  Buffer control;
  std::mutex mutex;
  std::vector<Buffer> left_behind;
};

// Memory of ranks that are threads. An address is the same for every thread, so nothing is attached. Data outside of
// segments is copied, as between processes, because after an error the owner of the data can free it while peers still
// read.
class LocalMemory final : public DirectMemory {
 public:
  LocalMemory(std::shared_ptr<LocalWorld> world, int world_size)
      : world_(std::move(world)), control_(world_->control.get(), world_size) {}
  ~LocalMemory() override {
    const std::scoped_lock lock(world_->mutex);
    for (auto& [address, segment] : segments_) world_->left_behind.push_back(std::move(segment.buffer));
    for (Retired& retired : retired_) world_->left_behind.push_back(std::move(retired.buffer));
  }

  ControlBlock& control() override { return control_; }
  std::optional<PeerAddress> publish(const void* data, int64_t bytes, uint64_t seq) override {
    const std::scoped_lock lock(mutex_);
    if (is_in_segment(data)) return PeerAddress{1, reinterpret_cast<uintptr_t>(data)};
    Buffer copy(::operator new(static_cast<size_t>(bytes), kPageAlignment));
    std::memcpy(copy.get(), data, static_cast<size_t>(bytes));
    const PeerAddress address{1, reinterpret_cast<uintptr_t>(copy.get())};
    retired_.push_back({std::move(copy), seq});
    return address;
  }
  const void* read(int, const PeerAddress& address) override { return reinterpret_cast<const void*>(address.offset); }

  SegmentGrant create(int64_t bytes) override {
    Buffer buffer = zeroed(static_cast<size_t>(bytes));
    const SegmentGrant grant{reinterpret_cast<uintptr_t>(buffer.get()), 0, -1, buffer.get()};
    const std::scoped_lock lock(mutex_);
    segments_.emplace(grant.segment, Segment{std::move(buffer), static_cast<size_t>(bytes)});
    return grant;
  }
  void attach(int, const SegmentGrant&, int64_t) override {}
  void attached(const SegmentGrant&) override {}
  void free(uint64_t segment) noexcept override {
    const std::scoped_lock lock(mutex_);
    const auto it = segments_.find(segment);
    if (it == segments_.end()) return;
    retired_.push_back({std::move(it->second.buffer), 0});
    segments_.erase(it);
  }
  // Must be called after a synchronisation. No peer then reads a segment that was freed before. No peer reads the
  // copied input of an earlier collective either, unless the collective is an exchange that the peer has not released.
  void sweep() noexcept override {
    const std::scoped_lock lock(mutex_);
    std::erase_if(retired_, [&](const Retired& retired) {
      for (int rank = 0; rank < control_.world_size() && retired.seq > 0; ++rank)
        if (!control_.rank(rank).has_finished(retired.seq)) return false;  // an exchange that `rank` has not released
      return true;
    });
  }

 private:
  struct Segment {
    Buffer buffer;
    size_t bytes;
  };

  struct Retired {
    Buffer buffer;
    // The number of the collective whose input is in the memory; 0: the memory is a segment, which its owner has freed.
    uint64_t seq;
  };

  bool is_in_segment(const void* data) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto next = segments_.upper_bound(address);
    if (next == segments_.begin()) return false;
    --next;
    return address < next->first + next->second.bytes;
  }

  std::shared_ptr<LocalWorld> world_;
  ControlBlock control_;
  std::mutex mutex_;
  std::map<uintptr_t, Segment> segments_;
  std::vector<Retired> retired_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> make_local_world(int world_size, const CommOptions& options) {
  ZS_CHECK(world_size > 0, "world_size must be positive, got ", world_size);
  const auto shared = std::make_shared<LocalWorld>(world_size);
  std::vector<std::unique_ptr<Comm>> world;
  for (int rank = 0; rank < world_size; ++rank) {
    PeerWatch watch(std::vector<ProcessId>(static_cast<size_t>(world_size)), options.stall_timeout_ms);
    auto core = std::make_shared<DirectCore>(std::make_shared<LocalMemory>(shared, world_size), std::move(watch), rank,
                                             options);
    world.push_back(std::make_unique<DirectComm>(std::move(core), "local"));
  }
  return world;
}

}  // namespace zeroshard
