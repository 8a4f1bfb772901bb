#include "activations/host_activations.h"

#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/process_mark.h"
#include "device/mover.h"
#include "device/pinned_memory.h"
#include "device/streams.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

struct Block {
  std::shared_ptr<std::byte> memory;
  int64_t bytes;
  std::optional<c10::Event> copied = std::nullopt;  // end of the last copy to or from the block
};

}  // namespace

// Keeps one record for each kept tensor: its bytes, which are in a block of host memory or in the files, and its
// layout. One stream, the mover's, makes all copies between device and host. Before each copy, this stream waits for
// the work of the current stream. When a tensor comes back, the current stream waits for the tensor's copy. Two copies
// on one stream cannot overlap, so a block's next copy may be queued before its previous copy has ended. The host waits
// for a block's last copy only before the host itself reads, fills or frees the block.
class HostActivations::Copies {
 public:
  using Id = uint64_t;

  Copies(c10::Device device, std::shared_ptr<RecordStore> files) : files_(std::move(files)), mover_(device) {}

  c10::Device device() const { return mover_.device(); }

  Id take(const at::Tensor& tensor, const Lay& lay) {
    check_process();
    const std::lock_guard lock(mutex_);
    const size_t free = free_block(lay.bytes);
    Block& block = free_[free];
    mover_.follow();
    mover_.to_host(block.memory.get(), tensor.const_data_ptr(), lay.bytes);
    mover_.outlive(tensor);
    block.copied = mover_.record();
    const auto record = records_.emplace(last_ + 1, Record{lay, std::nullopt}).first;
    record->second.block = std::move(block);
    ++last_;
    free_.erase(free_.begin() + std::ptrdiff_t(free));
    return last_;
  }

  at::Tensor bring_back(Id id) {
    check_process();
    const std::lock_guard lock(mutex_);
    Ahead copy = ahead_ && ahead_->id == id ? std::move(*ahead_) : begin_copy(id);
    if (ahead_ && ahead_->id == id) ahead_.reset();
    current_stream_waits(copy.done, device());
    outlive_current_stream(copy.tensor);  // when the tensor was made, another stream may have been current
    begin_next(id);
    return copy.tensor;
  }

  void begin_newest() {
    check_process();
    const std::lock_guard lock(mutex_);
    if (files_) files_->will_get_newest();  // tells the store to read its newest record ahead
    begin_next(last_ + 1);
  }

  void drop(Id id) noexcept {
    if (!process_.is_own()) return;
    const std::lock_guard lock(mutex_);
    if (ahead_ && ahead_->id == id) ahead_.reset();
    const auto found = records_.find(id);
    if (found->second.block)
      free_.push_back(std::move(*found->second.block));
    else
      files_->drop(found->second.in_file);
    records_.erase(found);
  }

 private:
  struct Record {
    Lay lay;
    std::optional<Block> block;  // empty: the record is in the files
    RecordStore::Id in_file = 0;
  };
  struct Ahead {
    Id id;
    at::Tensor tensor;
    c10::Event done;
  };

  void check_process() const {
    if (!process_.is_own())
      throw StateError(
          "this process is a fork of a rank, and cannot use the activations that the rank keeps beside its device "
          "(zeroshard.offload.activations). Use the engine only in the process that made it");
  }

  // Returns the index in free_ of the shortest block that is long enough. Among blocks of equal length, it is the one
  // that has been free for the longest time. If no free block is long enough, makes one. To do so, if files exist and
  // all kHostBlocks blocks are in use, first moves the oldest record to the files, which frees the record's block. If
  // no free block is long enough even then, replaces the longest free block by a new one, or adds a new block if none
  // is free.
  size_t free_block(int64_t bytes) {
    if (const std::optional<size_t> found = find_free(bytes)) return *found;
    if (files_ && free_.empty() && num_blocks_ >= kHostBlocks) {
      move_oldest_to_files();
      if (const std::optional<size_t> found = find_free(bytes)) return *found;
    }
    if (!free_.empty()) {
      const auto longest = std::max_element(free_.begin(), free_.end(), is_shorter);
      if (longest->copied) longest->copied->synchronize();
      free_.erase(longest);
      --num_blocks_;
    }
    free_.push_back({pinned_memory(bytes, device()), bytes});
    ++num_blocks_;
    return free_.size() - 1;
  }

  std::optional<size_t> find_free(int64_t bytes) const {
    std::optional<size_t> best;
    for (size_t i = 0; i < free_.size(); ++i)
      if (free_[i].bytes >= bytes && (!best || is_shorter(free_[i], free_[*best]))) best = i;
    return best;
  }

  static bool is_shorter(const Block& a, const Block& b) { return a.bytes < b.bytes; }

  // Moves to the files the oldest of the records that are in blocks, and frees its block. Some record must be in a
  // block. This is so, because the caller calls this function only if blocks exist and none of them is free.
  void move_oldest_to_files() {
    const auto oldest =
        std::find_if(records_.begin(), records_.end(), [](const auto& each) { return each.second.block.has_value(); });
    Record& record = oldest->second;
    record.block->copied->synchronize();
    record.in_file = files_->put({record.block->memory.get(), size_t(record.lay.bytes)});
    free_.push_back(std::move(*record.block));
    record.block.reset();
  }

  Ahead begin_copy(Id id) {
    Record& record = records_.at(id);
    at::Tensor tensor = record.lay.empty_on(device());
    Block& block = record.block ? *record.block : read(record);
    mover_.follow();
    mover_.to_device(tensor.mutable_data_ptr(), block.memory.get(), record.lay.bytes);
    mover_.outlive(tensor);
    block.copied = mover_.record();
    return {id, std::move(tensor), mover_.record()};
  }

  // Reads a record from the files into a block, and returns the block. The block stays in free_ while the caller's copy
  // from it to the device runs. This is safe, because later copies to the block follow on the same stream, and the host
  // waits for the copy before it fills or frees the block.
  Block& read(const Record& record) {
    const DirectBuffer memory = files_->get(record.in_file);
    const auto free = free_.begin() + std::ptrdiff_t(free_block(record.lay.bytes));
    std::rotate(free, free + 1, free_.end());
    Block& block = free_.back();
    if (block.copied) block.copied->synchronize();
    std::memcpy(block.memory.get(), memory.get(), size_t(record.lay.bytes));
    return block;
  }

  // Starts to copy back to the device the newest record that is older than `id`. Does nothing if no record is older, or
  // if this copy was already begun. Otherwise first drops the copy of another record that was begun ahead. If the new
  // copy fails, for example because there is no memory on the device, this function ignores the error, because the copy
  // is tried again when the record is requested. But it passes on an IoError, because the files cannot be used any
  // more.
  void begin_next(Id id) {
    const auto next = records_.lower_bound(id);
    if (next == records_.begin()) return;
    const Id wanted = std::prev(next)->first;
    if (ahead_ && ahead_->id == wanted) return;
    ahead_.reset();
    try {
      ahead_.emplace(begin_copy(wanted));
    } catch (const IoError&) {  // the files cannot be used any more
      throw;
    } catch (const std::exception&) {
    }
  }

  ProcessMark process_;
  std::shared_ptr<RecordStore> files_;  // null: everything stays in memory
  std::mutex mutex_;                    // protects the following members
  std::vector<Block> free_;             // ordered by the time of becoming free
  int num_blocks_ = 0;                  // includes the blocks of records
  std::map<Id, Record> records_;
  Id last_ = 0;
  Mover mover_;  // declared after the memory that it copies
  std::optional<Ahead> ahead_;
};

class HostActivations::Kept final : public KeptTensor {
 public:
  Kept(std::shared_ptr<Copies> copies, const at::Tensor& tensor)
      : copies_(std::move(copies)),
        version_(tensor.unsafeGetTensorImpl()->version_counter()),
        kept_version_(version_.current_version()),
        lay_(tensor),
        id_(copies_->take(tensor, lay_)) {}
  ~Kept() override { copies_->drop(id_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  at::Tensor bring_back() override {
    // Checks that later computation has not changed the tensor in place. If it has, the copy on the host may have the
    // old or the new values, because the copy may have run at the same time as the change.
    if (version_.current_version() != kept_version_)
      throw StateError(
          "the input of a checkpointed layer was changed in place after the layer had begun: its copy on the host "
          "(zeroshard.offload.activations) cannot be used. Change a copy of it");
    return copies_->bring_back(id_);
  }
  bool lies_like(const at::Tensor& tensor) const { return lay_.is_of(tensor); }

 private:
  std::shared_ptr<Copies> copies_;
  c10::VariableVersion version_;
  uint32_t kept_version_;
  Lay lay_;
  Copies::Id id_;
};

HostActivations::HostActivations(c10::Device device, std::unique_ptr<CountedRecords> files)
    : files_(std::move(files)), copies_(std::make_shared<Copies>(device, files_ ? files_->store() : nullptr)) {}

HostActivations::~HostActivations() = default;

std::shared_ptr<KeptTensor> HostActivations::keep(const at::Tensor& tensor) {
  if (!can_leave(tensor, copies_->device())) return nullptr;
  return known_.of(tensor, [&] { return std::make_shared<Kept>(copies_, tensor); });
}

void HostActivations::begin_backward() {
  copies_->begin_newest();
}

}  // namespace zeroshard
