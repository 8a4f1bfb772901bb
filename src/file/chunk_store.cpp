#include "file/chunk_store.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "file/hash.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

std::string in_words(const std::string& group) {
  return group.empty() ? "" : concat(" (", group, ")");
}

}  // namespace

ChunkStore::ChunkStore(std::span<const ChunkGroup> groups, Options options, Io& io, const Wrap& wrap)
    : options_(std::move(options)), io_(io), layout_(groups, options_.directories.size(), options_.chunk_numel) {
  ZS_CHECK(options_.buffer_count >= 1, "buffer_count must be positive, got ", options_.buffer_count);
  ZS_CHECK(options_.chunk_numel <= kChunkNumel, "a chunk has at most ", kChunkNumel, " elements, got ",
           options_.chunk_numel);
  for (size_t file = 0; file < options_.directories.size(); ++file)
    files_.emplace_back(io, options_.directories[file], layout_.file_bytes(file));
  sums_.resize(layout_.totals().num_sums);
  buffers_.resize(size_t(layout_.totals().num_buffers(options_.buffer_count)));
  for (Buffer& buffer : buffers_) {
    const int64_t bytes = layout_.totals().record_bytes;
    buffer.memory = options_.allocate ? options_.allocate(bytes) : allocate_direct(bytes);
  }
  make_queue(wrap);
  fill_files();
}

ChunkStore::~ChunkStore() {
  for (Buffer& buffer : buffers_) {
    try {
      buffer.await_readers();
    } catch (const std::exception&) {  // the reader has failed, so it reads nothing any more
    }
  }
}

void ChunkStore::make_queue(const Wrap& wrap) {
  QueueFiles shared;
  std::vector<TransferQueue::File> files;
  for (const SwapFile& file : files_) {
    shared.fds.push_back(file.fd());
    const auto what = [this, number = files.size()](int64_t offset) {
      return in_words(layout_.group_at(number, offset));
    };
    files.push_back({file.fd(), file.path(), file.direct(), what});
  }
  for (const Buffer& buffer : buffers_)
    shared.buffers.push_back({buffer.memory.get(), size_t(layout_.totals().record_bytes)});
  shared.depth = options_.queue_depth;
  auto queue = make_block_queue(shared, options_.ring, io_, options_.thread_count);
  if (wrap) queue = wrap(std::move(queue));
  transfers_ = std::make_unique<TransferQueue>(std::move(queue), io_, std::move(files), buffers_.size(),
                                               options_.queue_depth, options_.block_bytes);
}

// Writes zeros to each file once from start to end, and sets all checksums. Otherwise the first write to each part
// would be slow, because a file system has extra work when space that is only reserved is written for the first time.
void ChunkStore::fill_files() {
  if (buffers_.empty()) return;
  std::byte* const zeros = buffers_[0].memory.get();
  std::memset(zeros, 0, size_t(layout_.totals().record_bytes));
  for (size_t number = 0; number < layout_.chunks().size(); ++number) {
    const Chunk& chunk = layout_.chunks()[number];
    const size_t owner = number % buffers_.size();  // buffers take turns as owners, so that several writes run at once
    while (!transfers_->is_idle(owner)) transfers_->advance(/*wait=*/true);
    transfers_->begin({BlockRequest::Kind::kWrite, chunk.file, zeros, chunk.bytes(), chunk.offset, owner});
    for (int slot = 0; slot < chunk.slots; ++slot) {
      for (size_t block = 0; block < chunk.blocks(); ++block) {
        const int64_t bytes = chunk.block_bytes(slot, block).size();
        sums_[chunk.first_sum + size_t(slot) * chunk.blocks() + block] = hash_bytes(zeros, bytes);
      }
    }
  }
  while (!transfers_->is_idle()) transfers_->advance(/*wait=*/true);
}

template <typename Call>
void ChunkStore::guarded(const Call& all) {
  if (!failure_.empty()) throw IoError(failure_);
  try {
    all();
    // The store also fails after std::bad_alloc, because data that should have been written might be lost.
  } catch (const std::exception& error) {
    if (failure_.empty()) failure_ = error.what();
    throw;
  }
}

std::vector<ChunkStore::Planned> ChunkStore::chunks_of(size_t group, Range range, std::optional<int> slot,
                                                       Access access) const {
  ZS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= layout_.numel(group), "elements ", range.begin,
           " to ", range.end, " of group ", group, ", which has ", layout_.numel(group));
  std::vector<Planned> result;
  for (int64_t begin = range.begin; begin < range.end;) {
    Planned planned{layout_.find(group, begin), {}};
    const Chunk& chunk = layout_.chunks()[planned.chunk];
    ZS_CHECK(!slot || (*slot >= 0 && *slot < chunk.slots), "slot ", *slot, " of group ", group, ", which has ",
             chunk.slots);
    const Range lent = intersect(range, chunk.elements);
    const Range within = lent - chunk.elements.begin;
    for (int each = slot.value_or(0); each < (slot ? *slot + 1 : chunk.slots); ++each) {
      for (int64_t block = within.begin / kSumNumel; block * kSumNumel < within.end; ++block) {
        const size_t bit = size_t(each) * chunk.blocks() + size_t(block);
        const Range whole{block * kSumNumel, std::min((block + 1) * kSumNumel, chunk.numel())};
        planned.blocks.set(bit);
        planned.overwritten.set(bit, access == Access::kOverwrite && intersect(within, whole) == whole);
      }
    }
    result.push_back(planned);
    begin = lent.end;
  }
  return result;
}

void ChunkStore::lend(size_t group, Range range, Access access, const Use& use, std::optional<int> slot) {
  const std::vector<Planned> parts = chunks_of(group, range, slot, access);
  follow_plan(parts);
  for (const Planned& part : parts) {
    Buffer* buffer = nullptr;
    guarded([&] {
      buffer = &bring(part);
      if (!plan_.empty() && plan_.front().chunk == part.chunk) plan_.pop_front();
      if (access != Access::kRead) {
        if (buffer->writing) wait_for(*buffer);
        buffer->await_readers();
      }
      transfers_->advance(/*wait=*/false);
      read_ahead();
    });
    const Chunk& chunk = layout_.chunks()[part.chunk];
    const Range lent = intersect(range, chunk.elements);
    std::vector<float*> slots;
    for (int each = slot.value_or(0); each < (slot ? *slot + 1 : chunk.slots); ++each) {
      const int64_t first = (lent.begin - chunk.elements.begin) * chunk.value_bytes(each);
      slots.push_back(reinterpret_cast<float*>(buffer->memory.get() + chunk.slot_begin(each) + first));
    }
    if (access != Access::kRead) buffer->changed |= part.blocks;
    use(lent, slots);
  }
}

void ChunkStore::read_on(std::shared_ptr<Reader> reader) {
  ZS_ASSERT(current_ != nullptr, "nothing is lent");
  std::vector<std::shared_ptr<Reader>> reading{std::move(reader)};
  for (const auto& each : current_->readers)
    if (!each->is_done()) reading.push_back(each);
  current_->readers = std::move(reading);
}

void ChunkStore::will_need(size_t group, Range range) {
  append_to_plan(group, range);
  guarded([&] { read_ahead(); });
}

void ChunkStore::will_need_next(std::span<const Announced> next) {
  plan_.clear();
  for (const Announced& each : next) append_to_plan(each.group, each.range);
  guarded([&] { read_ahead(); });
}

void ChunkStore::append_to_plan(size_t group, Range range) {
  for (const Planned& part : chunks_of(group, range)) {
    if (!plan_.empty() && plan_.back().chunk == part.chunk) {
      plan_.back().blocks |= part.blocks;
    } else {
      plan_.push_back(part);
    }
  }
}

void ChunkStore::flush() {
  guarded([&] {
    leave_current();
    while (!transfers_->is_idle()) transfers_->advance(/*wait=*/true);
  });
}

// Adapts the plan to `next`, the chunks that lend() is about to lend. Looks in the plan for the first of them or, if
// this is the current chunk, for the second. If the plan has that chunk, removes the chunks before it from the plan.
// Otherwise replaces the whole plan by `next`. Leaves the plan as it is if `next` is empty or has only the current
// chunk.
void ChunkStore::follow_plan(const std::vector<Planned>& next) {
  if (next.empty()) return;
  const bool goes_on = current_ != nullptr && current_->chunk == next.front().chunk;
  if (goes_on && next.size() == 1) return;
  const size_t first = next[goes_on ? 1 : 0].chunk;
  const auto found = std::find_if(plan_.begin(), plan_.end(), [&](const Planned& each) { return each.chunk == first; });
  if (found == plan_.end()) {
    plan_.assign(next.begin(), next.end());
  } else {
    plan_.erase(plan_.begin(), found);
  }
}

// Brings the wanted blocks into a buffer, makes this buffer the current one, and returns it. Blocks that will be
// overwritten are neither read nor checked.
ChunkStore::Buffer& ChunkStore::bring(const Planned& wanted) {
  if (current_ != nullptr && current_->chunk != wanted.chunk) leave_current();
  Buffer* buffer = find(wanted.chunk);
  if (buffer == nullptr) {
    buffer = &least_needed();
    buffer->reset(wanted.chunk);
  }
  current_ = buffer;  // set before wait_for(), which reads ahead, but not into the current buffer
  const Blocks missing = wanted.to_read() & ~buffer->there;
  if (missing.any()) {
    wait_for(*buffer);
    begin_read(*buffer, missing);
  }
  if (!buffer->writing) wait_for(*buffer);
  buffer->there |= wanted.overwritten;
  buffer->unchecked &= ~wanted.overwritten;
  check(*buffer, wanted.blocks);
  return *buffer;
}

ChunkStore::Buffer* ChunkStore::find(size_t chunk) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& b) { return b.chunk == chunk; });
  return found == buffers_.end() ? nullptr : &*found;
}

bool ChunkStore::is_planned(size_t chunk) const {
  // Looks only at as many planned chunks as there are buffers, because there is no buffer for later chunks.
  const auto end = plan_.begin() + std::min(std::ssize(plan_), std::ssize(buffers_));
  return std::any_of(plan_.begin(), end, [&](const Planned& each) { return each.chunk == chunk; });
}

// Returns the buffer that is needed least. Prefers a free buffer, and otherwise a buffer whose chunk is not planned.
// Among buffers that are equal in this, prefers one without running transfers and readers. So transfers and readers of
// the returned buffer might still be running.
ChunkStore::Buffer& ChunkStore::least_needed() {
  const auto rank = [&](const Buffer& buffer) {
    if (!buffer.chunk) return 0;
    const bool at_rest = transfers_->is_idle(number(buffer)) && !buffer.is_read();
    return 1 + (at_rest ? 0 : 1) + (is_planned(*buffer.chunk) ? 2 : 0);
  };
  Buffer& least = *std::min_element(buffers_.begin(), buffers_.end(),
                                    [&](const Buffer& a, const Buffer& b) { return rank(a) < rank(b); });
  ZS_ASSERT(least.changed.none(), "a chunk that is not the current one has changes");
  return least;
}

void ChunkStore::read_ahead() {
  size_t ahead = 1;  // number of buffers in use, for the current chunk and for planned chunks
  for (const Planned& next : plan_) {
    if (ahead++ >= buffers_.size()) return;
    Buffer* buffer = find(next.chunk);
    if (buffer == nullptr) {
      const auto is_free = [&](const Buffer& each) {
        return &each != current_ && transfers_->is_idle(number(each)) && !(each.chunk && is_planned(*each.chunk)) &&
               !each.is_read();
      };
      const auto found = std::find_if(buffers_.begin(), buffers_.end(), is_free);
      if (found == buffers_.end()) return;
      buffer = &*found;
      buffer->reset(next.chunk);
    }
    const Blocks missing = next.to_read() & ~buffer->there;
    if (missing.any() && transfers_->is_idle(number(*buffer))) begin_read(*buffer, missing);
  }
}

void ChunkStore::begin_read(Buffer& buffer, const Blocks& blocks) {
  const Chunk& chunk = layout_.chunks()[*buffer.chunk];
  buffer.writing = false;
  buffer.there |= blocks;
  buffer.unchecked |= blocks;
  for_each_stretch(chunk, blocks, [&](int64_t begin, int64_t bytes) {
    transfers_->begin({BlockRequest::Kind::kRead, chunk.file, buffer.memory.get() + begin, bytes, chunk.offset + begin,
                       number(buffer)});
  });
}

void ChunkStore::begin_write(Buffer& buffer) {
  const Chunk& chunk = layout_.chunks()[*buffer.chunk];
  wait_for(buffer);
  for_each_sum(buffer, buffer.changed,
               [&](size_t sum, const std::byte* data, int64_t bytes) { sums_[sum] = hash_bytes(data, bytes); });
  buffer.writing = true;
  for_each_stretch(chunk, std::exchange(buffer.changed, {}), [&](int64_t begin, int64_t bytes) {
    transfers_->begin({BlockRequest::Kind::kWrite, chunk.file, buffer.memory.get() + begin, bytes, chunk.offset + begin,
                       number(buffer)});
  });
}

void ChunkStore::leave_current() {
  if (current_ != nullptr && current_->changed.any()) begin_write(*current_);
  current_ = nullptr;
}

void ChunkStore::wait_for(Buffer& buffer) {
  while (!transfers_->is_idle(number(buffer))) {
    transfers_->advance(/*wait=*/true);
    read_ahead();
  }
  buffer.writing = false;
}

void ChunkStore::check(Buffer& buffer, const Blocks& blocks) {
  const Blocks unchecked = blocks & buffer.unchecked;
  if (unchecked.none()) return;
  const Chunk& chunk = layout_.chunks()[*buffer.chunk];
  for_each_sum(buffer, unchecked, [&](size_t sum, const std::byte* data, int64_t bytes) {
    compare(chunk, sum, data, bytes, data - buffer.memory.get());
  });
  buffer.unchecked &= ~unchecked;
}

void ChunkStore::compare(const Chunk& chunk, size_t sum, const std::byte* data, int64_t bytes, int64_t offset) const {
  if (!options_.verify || hash_bytes(data, bytes) == sums_[sum]) return;
  throw IoError(concat("cannot use what was read from ", files_[chunk.file].path(), ": the ", bytes,
                       " bytes from byte ", chunk.offset + offset, in_words(layout_.group_at(chunk.file, chunk.offset)),
                       " are not those that were written. The device or its cable may be failing: see the kernel's "
                       "log, and go on from the last checkpoint in another directory"));
}

ChunkStore::SlotBlocks ChunkStore::copy_buffered(size_t chunk, int slot, std::byte* to) {
  SlotBlocks missing;
  guarded([&] {
    transfers_->advance(/*wait=*/false);
    const Chunk& own = layout_.chunks().at(chunk);
    const Buffer* const buffer = find(chunk);
    const bool is_at_rest = buffer != nullptr && (buffer->writing || transfers_->is_idle(number(*buffer)));
    for (size_t block = 0; block < own.blocks(); ++block) {
      const size_t bit = size_t(slot) * own.blocks() + block;
      // The values of a changed block are only in the buffer, and are valid even while other blocks are read into it.
      const bool is_here = buffer != nullptr && (buffer->changed[bit] || (is_at_rest && buffer->there[bit]));
      if (!is_here) {
        missing.set(block);
        continue;
      }
      const Range bytes = own.block_bytes(slot, block);
      std::byte* const copy = to + (bytes.begin - own.slot_begin(slot));
      std::memcpy(copy, buffer->memory.get() + bytes.begin, size_t(bytes.size()));
      if (buffer->unchecked[bit]) compare(own, own.first_sum + bit, copy, bytes.size(), bytes.begin);
    }
  });
  return missing;
}

void ChunkStore::read_file(size_t chunk, int slot, const SlotBlocks& blocks, std::byte* to) const {
  const Chunk& own = layout_.chunks().at(chunk);
  const SwapFile& file = files_[own.file];
  for (size_t block = 0; block < own.blocks(); ++block) {
    if (!blocks[block]) continue;
    const size_t first = block;
    while (block + 1 < own.blocks() && blocks[block + 1]) ++block;
    const int64_t begin = own.block_bytes(slot, first).begin, bytes = own.block_bytes(slot, block).end - begin;
    const int64_t offset = own.offset + begin, slot_begin = own.slot_begin(slot);
    bool direct = file.direct();
    try {
      read_at_least(io_, file.fd(), file.path(), to + (begin - slot_begin), bytes, bytes, offset, direct);
    } catch (const IoError& error) {
      throw IoError(concat(error.what(), in_words(layout_.group_at(own.file, offset))));
    }
    for (size_t each = first; each <= block; ++each) {
      const Range part = own.block_bytes(slot, each);
      compare(own, own.first_sum + size_t(slot) * own.blocks() + each, to + (part.begin - slot_begin), part.size(),
              part.begin);
    }
  }
}

void ChunkStore::fail(const std::string& message) {
  if (failure_.empty()) failure_ = message;
}

// Calls visit(position in the record, bytes) for each range of the record that `blocks` fill without a gap.
template <typename Visit>
void ChunkStore::for_each_stretch(const Chunk& chunk, const Blocks& blocks, const Visit& visit) const {
  int64_t begin = 0, end = 0;
  for (int slot = 0; slot < chunk.slots; ++slot) {
    for (size_t block = 0; block < chunk.blocks(); ++block) {
      if (!blocks[size_t(slot) * chunk.blocks() + block]) continue;
      const Range bytes = chunk.block_bytes(slot, block);
      if (bytes.begin != end) {
        if (end > begin) visit(begin, end - begin);
        begin = bytes.begin;
      }
      end = bytes.end;
    }
  }
  if (end > begin) visit(begin, end - begin);
}

// Calls visit(index of the block's checksum, address of the block's data in the buffer, how many bytes) for every block
// in `blocks`.
template <typename Visit>
void ChunkStore::for_each_sum(const Buffer& buffer, const Blocks& blocks, const Visit& visit) {
  const Chunk& chunk = layout_.chunks()[*buffer.chunk];
  for (int slot = 0; slot < chunk.slots; ++slot) {
    for (size_t block = 0; block < chunk.blocks(); ++block) {
      const size_t bit = size_t(slot) * chunk.blocks() + block;
      if (!blocks[bit]) continue;
      const Range bytes = chunk.block_bytes(slot, block);
      visit(chunk.first_sum + bit, buffer.memory.get() + bytes.begin, bytes.size());
    }
  }
}

}  // namespace zeroshard
