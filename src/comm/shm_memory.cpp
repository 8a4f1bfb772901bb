#include "comm/shm_memory.h"

#include "base/check.h"

namespace zeroshard {
namespace {

// A segment id is the value of a counter. The id modulo kMaxSegments is the segment's slot in
// RankControl::live_segments. The staging ring has the id kStagingId.
constexpr uint64_t kStagingId = ~uint64_t{0};
constexpr size_t slot_of(uint64_t id) {
  return id % kMaxSegments;
}

Fd staging_file(int64_t bytes) {
  return create_shared(static_cast<size_t>(bytes));
}

}  // namespace

uint64_t OwnSegments::new_id(const RankControl& own) {
  for (uint64_t i = 0; i < kMaxSegments; ++i) {
    const uint64_t id = ++ids_;
    if (own.live_segments[slot_of(id)].load(std::memory_order_relaxed) == 0) return id;
  }
  throw CommError(concat("more than ", kMaxSegments, " allocations are alive: allocate fewer, larger ones"));
}

SegmentGrant OwnSegments::create(int64_t bytes, RankControl& own) {
  // The size is never 0, so that every allocation has its own address.
  const size_t size = static_cast<size_t>(bytes > 0 ? bytes : 1);
  Fd fd = create_shared(size);
  Mapping memory = map_shared(fd, size, /*writable=*/true);
  const std::scoped_lock lock(mutex_);
  const SegmentGrant grant{new_id(own), inode_of(fd), fd.get(), memory.data()};
  own.live_segments[slot_of(grant.segment)].store(grant.segment, std::memory_order_release);
  memory_[static_cast<const std::byte*>(grant.data)] = {grant.segment, std::move(memory)};
  open_.emplace(grant.segment, std::move(fd));
  return grant;
}

void OwnSegments::close(uint64_t id) {
  const std::scoped_lock lock(mutex_);
  open_.erase(id);
}

void OwnSegments::free(uint64_t id, RankControl& own) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(memory_, [id](const auto& entry) { return entry.second.first == id; });
  open_.erase(id);
  own.live_segments[slot_of(id)].store(0, std::memory_order_release);
}

std::optional<PeerAddress> OwnSegments::find(const void* data, int64_t bytes) const {
  const std::byte* begin = static_cast<const std::byte*>(data);
  const std::scoped_lock lock(mutex_);
  auto after = memory_.upper_bound(begin);
  if (after == memory_.begin()) return std::nullopt;
  const auto& [id, memory] = (--after)->second;
  const size_t offset = static_cast<size_t>(begin - memory.data());
  if (offset > memory.bytes() || memory.bytes() - offset < static_cast<size_t>(bytes)) return std::nullopt;
  return PeerAddress{id, offset};
}

ShmMemory::ShmMemory(int rank, int world_size, int64_t staging_bytes, RankNumbers numbers)
    : rank_(rank),
      numbers_(numbers),
      staging_fd_(staging_file(staging_bytes)),
      staging_(map_shared(staging_fd_, static_cast<size_t>(staging_bytes), /*writable=*/true)),
      peers_(static_cast<size_t>(world_size)) {
  hello_.process = this_process();
  hello_.staging_fd = staging_fd_.get();
  hello_.staging_inode = inode_of(staging_fd_);
  hello_.staging_bytes = static_cast<uint64_t>(staging_bytes);
  if (rank != 0) return;
  control_fd_ = create_shared(ControlBlock::bytes(world_size));
  control_memory_ = map_shared(control_fd_, ControlBlock::bytes(world_size), /*writable=*/true);
  ControlBlock::create(control_memory_.data(), world_size);
  hello_.control_fd = control_fd_.get();
  hello_.control_inode = inode_of(control_fd_);
}

void ShmMemory::connect(std::vector<ShmHello> hellos) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) peers_[peer].hello = hellos.at(peer);
  if (rank_ != 0) {
    const ShmHello& first = peers_.front().hello;
    const Fd fd = open_peer(first.process.pid, first.control_fd, first.control_inode);
    control_memory_ = map_shared(fd, ControlBlock::bytes(world_size()), /*writable=*/true);
  }
  control_.emplace(control_memory_.data(), world_size());
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peer == size_t(rank_)) continue;
    const ShmHello& hello = peers_[peer].hello;
    const Fd fd = open_peer(hello.process.pid, hello.staging_fd, hello.staging_inode);
    peers_[peer].segments.emplace(kStagingId, map_shared(fd, hello.staging_bytes, /*writable=*/false));
  }
}

void ShmMemory::connected() {
  control_fd_.reset();
  staging_fd_.reset();
}

std::optional<PeerAddress> ShmMemory::publish(const void* data, int64_t bytes, uint64_t seq) {
  if (const std::optional<PeerAddress> address = own_.find(data, bytes)) return address;
  const std::optional<uint64_t> offset =
      staging_.put(data, bytes, seq, [this](uint64_t other) { return control_->finished_by_all(other); });
  if (!offset) return std::nullopt;
  return PeerAddress{kStagingId, *offset};
}

const void* ShmMemory::read(int peer, const PeerAddress& address) {
  const auto& segments = peers_.at(size_t(peer)).segments;
  const auto found = segments.find(address.segment);
  if (found == segments.end())
    throw CommError(concat("rank ", numbers_.of(peer), " freed an input that rank ", numbers_.of(rank_),
                           " had not read: keep inputs until the next ", "barrier, all_reduce or broadcast"));
  return found->second.data() + address.offset;
}

void ShmMemory::attach(int peer, const SegmentGrant& grant, int64_t bytes) {
  sweep();  // unmaps what the owners have freed, before it maps more
  const Fd fd = open_peer(peers_.at(size_t(peer)).hello.process.pid, grant.fd, grant.inode);
  Mapping memory = map_shared(fd, static_cast<size_t>(bytes > 0 ? bytes : 1), /*writable=*/false);
  peers_[size_t(peer)].segments.insert_or_assign(grant.segment, std::move(memory));
}

void ShmMemory::free(uint64_t segment) noexcept {
  // Peers still read the memory, so a forked child must not free it.
  if (process_.is_own()) own_.free(segment, own_control());
}

void ShmMemory::sweep() noexcept {
  for (int peer = 0; peer < world_size(); ++peer) {
    auto& live = control_->rank(peer).live_segments;
    std::erase_if(peers_[size_t(peer)].segments, [&](const auto& entry) {
      const uint64_t id = entry.first;
      return id != kStagingId && live[slot_of(id)].load(std::memory_order_acquire) != id;
    });
  }
}

}  // namespace zeroshard
