#include "file/record_store.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "file/hash.h"
#include "zeroshard/error.h"

namespace zeroshard {

int64_t RecordStore::Record::padded() const {
  return align_up(bytes, kDirectAlignment);
}

RecordStore::RecordStore(Options options, Io& io, OnFailure on_failure, const Wrap& wrap)
    : options_(std::move(options)), on_failure_(std::move(on_failure)) {
  ZS_CHECK(!options_.directories.empty(), "records need a directory for their file");
  for (const std::string& directory : options_.directories) files_.push_back({SwapFile(io, directory, /*bytes=*/0)});
  for (int i = 0; i < kRecordBuffers; ++i) buffers_.push_back({allocate_direct(kRecordPieceBytes)});
  make_queue(io, wrap);
}

RecordStore::~RecordStore() {
  // Never destroys the queue in a forked child, which does not have the threads that the queue uses.
  if (!process_.is_own()) static_cast<void>(transfers_.release());
}

void RecordStore::make_queue(Io& io, const Wrap& wrap) {
  QueueFiles shared;
  std::vector<TransferQueue::File> files;
  for (const File& file : files_) {
    shared.fds.push_back(file.swap.fd());
    files.push_back({file.swap.fd(), file.swap.path(), file.swap.direct()});
  }
  for (const Buffer& buffer : buffers_) shared.buffers.push_back({buffer.memory.get(), size_t(kRecordPieceBytes)});
  shared.depth = options_.queue_depth;
  auto queue = make_block_queue(shared, options_.ring, io, options_.thread_count);
  if (wrap) queue = wrap(std::move(queue));
  transfers_ = std::make_unique<TransferQueue>(std::move(queue), io, std::move(files), buffers_.size() + slots_.size(),
                                               options_.queue_depth, options_.block_bytes);
}

template <typename Call>
void RecordStore::guarded(const Call& all) {
  if (!failure_.empty()) throw IoError(failure_);
  try {
    all();
  } catch (const std::exception& error) {
    note_failure(error.what());
    throw;
  }
}

void RecordStore::note_failure(const char* message) noexcept {
  if (!failure_.empty()) return;
  failure_ = message;
  if (on_failure_) std::exchange(on_failure_, {})(failure_);
}

// No call can work in a forked child, because the threads and the ring belong to the parent, and the parent might have
// held the mutex when it forked.
void RecordStore::check_process() const {
  if (process_.is_own()) return;
  throw StateError(
      "this process is a fork of a rank, and cannot use the activations that the rank keeps in files "
      "(zeroshard.offload.activations). Use the engine only in the process that made it");
}

RecordStore::Id RecordStore::put(std::span<const std::byte> data) {
  check_process();
  const std::lock_guard lock(mutex_);
  ZS_CHECK(!data.empty(), "a record has at least one byte");
  Id id = 0;
  guarded([&] { id = write(data); });
  return id;
}

RecordStore::Record RecordStore::allocate(int64_t bytes) {
  Record record{size_t(last_ % files_.size()), 0, bytes};
  auto& [swap, space] = files_[record.file];
  std::optional<int64_t> offset = space.take(record.padded());
  if (!offset) {
    swap.grow(space.begin_of_tail() + record.padded());
    space.extend(swap.bytes());
    offset = space.take(record.padded());
  }
  record.offset = offset.value();
  return record;
}

RecordStore::Id RecordStore::write(std::span<const std::byte> data) {
  Record record = allocate(int64_t(data.size()));
  const Id id = ++last_;
  for (int64_t begin = 0; begin < record.bytes; begin += kRecordPieceBytes) {
    Buffer& buffer = buffers_[next_buffer_++ % buffers_.size()];
    wait_for(owner(buffer));
    const int64_t bytes = std::min(kRecordPieceBytes, record.bytes - begin), padded = align_up(bytes, kDirectAlignment);
    std::byte* const memory = buffer.memory.get();
    std::memcpy(memory, data.data() + begin, size_t(bytes));
    std::memset(memory + bytes, 0, size_t(padded - bytes));
    if (options_.verify) record.sums.push_back(hash_bytes(memory, bytes));
    buffer.record = id;
    transfers_->begin({BlockRequest::Kind::kWrite, record.file, memory, padded, record.offset + begin, owner(buffer)});
  }
  records_.emplace(id, std::move(record));
  return id;
}

DirectBuffer RecordStore::get(Id id) {
  check_process();
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  ZS_ASSERT(found != records_.end(), "a record is asked for that was dropped");
  Slot* slot = nullptr;
  guarded([&] { slot = &slot_for(id); });
  // The allocation is not guarded, because a lack of memory before the read is no failure of the files.
  if (!slot->record) slot->memory = allocate_direct(found->second.padded());
  DirectBuffer memory;
  guarded([&] {
    if (!slot->record) begin_read(*slot, id);
    read_ahead_of(id, slot);
    wait_for(owner(*slot));
    check(found->second, slot->memory.get());
    memory = std::move(slot->memory);
    slot->record.reset();
  });
  return memory;
}

// Frees a slot's memory only after the read into that memory has ended. Frees the record's space in the file only after
// the writes to that space have ended. Otherwise such a write might reach the file after the write of another record to
// the same space.
void RecordStore::drop(Id id) noexcept {
  if (!process_.is_own()) return;  // the record belongs to the parent
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) return;
  if (failure_.empty()) {
    try {
      wait_for_writes(id);
      for (Slot& slot : slots_) {
        if (slot.record != id) continue;
        wait_for(owner(slot));
        slot = Slot();
      }
      files_[found->second.file].space.give_back(found->second.offset, found->second.padded());
    } catch (const std::exception& error) {
      note_failure(error.what());
    }
  }
  records_.erase(found);
}

void RecordStore::will_get_newest() {
  check_process();
  const std::lock_guard lock(mutex_);
  guarded([&] { read_ahead_of(last_ + 1, nullptr); });
}

void RecordStore::forget_listener() {
  if (!process_.is_own()) return;
  const std::lock_guard lock(mutex_);
  on_failure_ = {};
}

void RecordStore::wait_for(size_t owner) {
  while (!transfers_->is_idle(owner)) transfers_->advance(/*wait=*/true);
}

void RecordStore::wait_for_writes(Id id) {
  for (const Buffer& buffer : buffers_)
    if (buffer.record == id) wait_for(owner(buffer));
}

// Starts to read a record into the slot's memory, after the writes of the record have ended. Cuts the record into at
// most queue_depth requests, so that all of them can start now. A further request would have to wait, and nobody would
// start it while the caller computes.
void RecordStore::begin_read(Slot& slot, Id id) {
  const Record& record = records_.at(id);
  wait_for_writes(id);
  slot.record = id;
  const int64_t part = align_up(ceil_div(record.padded(), options_.queue_depth), kDirectAlignment);
  Transfer transfer{BlockRequest::Kind::kRead, record.file,   slot.memory.get(),
                    record.padded(),           record.offset, owner(slot)};
  transfer.block_bytes = std::max(part, options_.block_bytes);
  transfers_->begin(transfer);
}

// Returns the slot into which the record is being read or was read. If there is none, empties a slot and returns it.
// Prefers a slot without a record, and then one whose read has ended.
RecordStore::Slot& RecordStore::slot_for(Id id) {
  for (Slot& slot : slots_)
    if (slot.record == id) return slot;
  const auto rank = [&](const Slot& slot) { return !slot.record ? 0 : transfers_->is_idle(owner(slot)) ? 1 : 2; };
  Slot& slot =
      *std::min_element(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) { return rank(a) < rank(b); });
  wait_for(owner(slot));
  slot = Slot();
  return slot;
}

// Starts to read the newest record before `id` into a slot other than `used`. Replaces what that slot has. Does nothing
// if there is no such record, if a slot has it already, or if reads into all other slots are running. If there is no
// memory, only empties the slot.
void RecordStore::read_ahead_of(Id id, const Slot* used) {
  auto next = records_.lower_bound(id);
  if (next == records_.begin()) return;
  const Id wanted = std::prev(next)->first;
  for (const Slot& slot : slots_)
    if (slot.record == wanted) return;
  for (Slot& slot : slots_) {
    if (&slot == used || !transfers_->is_idle(owner(slot))) continue;
    slot = Slot();
    try {
      slot.memory = allocate_direct(records_.at(wanted).padded());
    } catch (const std::bad_alloc&) {
      return;
    }
    begin_read(slot, wanted);
    return;
  }
}

void RecordStore::check(const Record& record, const std::byte* data) const {
  for (size_t piece = 0; piece < record.sums.size(); ++piece) {
    const int64_t begin = int64_t(piece) * kRecordPieceBytes;
    const int64_t bytes = std::min(kRecordPieceBytes, record.bytes - begin);
    if (hash_bytes(data + begin, bytes) == record.sums[piece]) continue;
    throw IoError(concat("cannot use what was read from ", files_[record.file].swap.path(), ": the ", bytes,
                         " bytes from byte ", record.offset + begin,
                         " are not those that were written. The device or its cable may be failing: see the kernel's "
                         "log, and go on from the last checkpoint in another directory"));
  }
}

int64_t RecordStore::num_records() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(records_);
}

int64_t RecordStore::file_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const File& file : files_) sum += file.swap.bytes();
  return sum;
}

int64_t RecordStore::free_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const File& file : files_) sum += file.space.free_bytes();
  return sum;
}

int64_t RecordStore::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return transfers_->bytes_moved(BlockRequest::Kind::kRead);
}

int64_t RecordStore::bytes_written() const {
  const std::lock_guard lock(mutex_);
  return transfers_->bytes_moved(BlockRequest::Kind::kWrite);
}

}  // namespace zeroshard
