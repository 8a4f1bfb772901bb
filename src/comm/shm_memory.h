#pragma once
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/process_mark.h"
#include "comm/direct_memory.h"
#include "comm/peer_watch.h"
#include "comm/rank_numbers.h"
#include "comm/staging.h"

namespace zeroshard {

// The message that a rank sends to the others when the communicator is created.
struct ShmHello {
  ProcessId process;
  uint64_t control_inode = 0, staging_inode = 0, staging_bytes = 0;
  int32_t control_fd = -1, staging_fd = -1;  // only rank 0 has a control_fd
};

// The segments of shared memory that this rank has created and not freed. Thread-safe, because any thread may free
// them.
class OwnSegments {
 public:
  // Creates a segment of at least `bytes`, and enters its id in `own`, this rank's part of the control block. Throws
  // CommError if kMaxSegments are alive.
  SegmentGrant create(int64_t bytes, RankControl& own);
  // Closes the descriptor of a segment that all ranks have attached.
  void close(uint64_t id);
  void free(uint64_t id, RankControl& own);
  // Returns where `data` is, or nothing if it is in no segment.
  std::optional<PeerAddress> find(const void* data, int64_t bytes) const;

 private:
  uint64_t new_id(const RankControl& own);

  mutable std::mutex mutex_;
  uint64_t ids_ = 0;
  std::map<const std::byte*, std::pair<uint64_t, Mapping>> memory_;  // by address: id and memory
  std::unordered_map<uint64_t, Fd> open_;  // descriptors of segments that some rank has not attached yet
};

// Anonymous shared memory that peers open through /proc/<pid>/fd. A descriptor is open only while peers attach its
// memory.
class ShmMemory final : public DirectMemory {
 public:
  // Creates this rank's part of the memory. Rank 0 also creates the control block. Error messages name ranks by
  // `numbers`.
  ShmMemory(int rank, int world_size, int64_t staging_bytes, RankNumbers numbers = {});
  const ShmHello& hello() const { return hello_; }
  // Maps the parts of the other ranks. connected() must be called when all ranks have returned from connect().
  void connect(std::vector<ShmHello> hellos);
  void connected();

  ControlBlock& control() override { return *control_; }
  std::optional<PeerAddress> publish(const void* data, int64_t bytes, uint64_t seq) override;
  uint64_t oldest_staged() const override { return staging_.oldest(); }
  const void* read(int peer, const PeerAddress& address) override;
  SegmentGrant create(int64_t bytes) override { return own_.create(bytes, own_control()); }
  void attach(int peer, const SegmentGrant& grant, int64_t bytes) override;
  void attached(const SegmentGrant& grant) override { own_.close(grant.segment); }
  void free(uint64_t segment) noexcept override;
  void sweep() noexcept override;

 private:
  // Keeps the hello of a rank, and those of its segments that this rank has mapped.
  struct Peer {
    ShmHello hello;
    std::unordered_map<uint64_t, Mapping> segments;  // by id, read-only
  };
  int world_size() const { return int(peers_.size()); }
  RankControl& own_control() { return control_->rank(rank_); }

  int rank_;
  RankNumbers numbers_;
  ShmHello hello_;
  Fd control_fd_, staging_fd_;
  Mapping control_memory_;
  std::optional<ControlBlock> control_;
  StagingRing staging_;
  std::vector<Peer> peers_;  // by rank
  ProcessMark process_;
  OwnSegments own_;
};

}  // namespace zeroshard
