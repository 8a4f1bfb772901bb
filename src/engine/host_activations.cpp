#include "engine/host_activations.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/process_mark.h"
#include "device/host_copy.h"
#include "device/pinned_memory.h"
#include "device/streams.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

struct Block {
  std::shared_ptr<std::byte> memory = nullptr;
  int64_t bytes = 0;
};

// How a tensor lay on the device.
struct Lay {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type;
  int64_t bytes;
};

}  // namespace

// Who waits for whom: the stream of copies follows what the current stream was given, and the current stream waits for
// the copy of the tensor that it is given. One stream makes all copies, so a block may be lent again at once.
class HostActivations::Copies {
 public:
  using Id = uint64_t;

  explicit Copies(c10::Device device) : device_(device), stream_(device) {}
  ~Copies() {
    if (process_.is_own()) wait();
  }

  c10::Device device() const { return device_; }

  Id take(const at::Tensor& tensor, const Lay& lay) {
    const std::lock_guard lock(mutex_);
    Block block = take_block(lay.bytes);
    stream_.follow();
    {
      const SideStream::Scope scope(stream_);
      begin_copy_to_host(block.memory.get(), tensor.const_data_ptr(), lay.bytes, device_);
      outlive_current_stream(tensor);
    }
    records_.emplace(++last_, Record{std::move(block), lay});
    return last_;
  }

  at::Tensor bring_back(Id id) {
    const std::lock_guard lock(mutex_);
    Ahead copy = ahead_ && ahead_->id == id ? std::move(*ahead_) : begin_copy(id);
    if (ahead_ && ahead_->id == id) ahead_.reset();
    current_stream_waits(copy.done, device_);
    begin_next(id);
    return copy.tensor;
  }

  void begin_newest() {
    const std::lock_guard lock(mutex_);
    begin_next(last_ + 1);
  }

  void drop(Id id) noexcept {
    if (!process_.is_own()) return;
    const std::lock_guard lock(mutex_);
    if (ahead_ && ahead_->id == id) ahead_.reset();
    const auto found = records_.find(id);
    free_.push_back(std::move(found->second.block));
    records_.erase(found);
  }

 private:
  struct Record {
    Block block;
    Lay lay;
  };
  struct Ahead {
    Id id;
    at::Tensor tensor;
    c10::Event done;
  };

  void wait() { stream_.record().synchronize(); }

  // The shortest that is long enough; else a new one, in place of the longest of those that are free.
  Block take_block(int64_t bytes) {
    const auto by_bytes = [](const Block& a, const Block& b) { return a.bytes < b.bytes; };
    std::sort(free_.begin(), free_.end(), by_bytes);
    const auto found = std::lower_bound(free_.begin(), free_.end(), Block{nullptr, bytes}, by_bytes);
    if (found != free_.end()) {
      Block block = std::move(*found);
      free_.erase(found);
      return block;
    }
    if (!free_.empty()) {
      wait();  // it may still be copied from
      free_.pop_back();
    }
    return {pinned_memory(bytes, device_), bytes};
  }

  Ahead begin_copy(Id id) {
    const Record& record = records_.at(id);
    at::Tensor tensor = at::empty_strided(record.lay.sizes, record.lay.strides,
                                          at::TensorOptions().dtype(record.lay.type).device(device_));
    stream_.follow();
    {
      const SideStream::Scope scope(stream_);
      begin_copy_from_host(tensor.mutable_data_ptr(), record.block.memory.get(), record.lay.bytes, device_);
      outlive_current_stream(tensor);
    }
    return {id, std::move(tensor), stream_.record()};
  }

  // The youngest record that is older than `id`, if the device has memory for it already.
  void begin_next(Id id) {
    const auto next = records_.lower_bound(id);
    if (next == records_.begin()) return;
    const Id wanted = std::prev(next)->first;
    if (ahead_ && ahead_->id == wanted) return;
    ahead_.reset();
    try {
      ahead_.emplace(begin_copy(wanted));
    } catch (const c10::OutOfMemoryError&) {
    }
  }

  ProcessMark process_;
  c10::Device device_;
  std::mutex mutex_;
  std::vector<Block> free_;
  std::map<Id, Record> records_;
  Id last_ = 0;
  SideStream stream_;  // after the memory that it copies
  std::optional<Ahead> ahead_;
};

class HostActivations::Kept final : public KeptTensor {
 public:
  Kept(std::shared_ptr<Copies> copies, const at::Tensor& tensor)
      : copies_(std::move(copies)),
        version_(tensor.unsafeGetTensorImpl()->version_counter()),
        kept_version_(version_.current_version()),
        id_(copies_->take(
            tensor, {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), int64_t(tensor.nbytes())})) {}
  ~Kept() override { copies_->drop(id_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  at::Tensor bring_back() override {
    // The copy runs beside what is computed meanwhile: it may have either value.
    if (version_.current_version() != kept_version_)
      throw StateError(
          "the input of a checkpointed layer was changed in place after the layer had begun: its copy on the host "
          "(zeroshard.offload.activations) cannot be used. Change a copy of it");
    return copies_->bring_back(id_);
  }

 private:
  std::shared_ptr<Copies> copies_;
  c10::VariableVersion version_;
  uint32_t kept_version_;
  Copies::Id id_;
};

HostActivations::HostActivations(c10::Device device) : copies_(std::make_shared<Copies>(device)) {}

HostActivations::~HostActivations() = default;

std::shared_ptr<KeptTensor> HostActivations::keep(const at::Tensor& tensor) {
  if (!can_leave(tensor, copies_->device())) return nullptr;
  return std::make_shared<Kept>(copies_, tensor);
}

void HostActivations::begin_backward() {
  copies_->begin_newest();
}

}  // namespace zeroshard
