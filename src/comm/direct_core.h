#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/process_mark.h"
#include "comm/comm.h"
#include "comm/comm_options.h"
#include "comm/direct_memory.h"
#include "comm/peer_watch.h"

namespace zeroshard {

// Orders the collectives of ranks that can read each other's memory, and spreads errors among them. direct_ops.cpp
// builds the collectives on it. The communicator and its Works share it, because a Work may be destroyed last.
class DirectCore {
 public:
  // A collective that still has to read the inputs of peers.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t seq() const = 0;
    virtual void read_all() = 0;  // reads all inputs, then calls remove_reader()
  };

  DirectCore(std::shared_ptr<DirectMemory> memory, PeerWatch watch, int rank, const CommOptions& options);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::shared_ptr<DirectMemory>& memory() const { return memory_; }

  // Announces this rank's next collective. Peers may read its input of `input_bytes` from now on. Fills in the sequence
  // number and address of `op`.
  void post(Op& op, const void* input, int64_t input_bytes);
  // Waits until `peer` has posted the same collective, and returns its descriptor. If the peer posted another
  // collective, fails on all ranks.
  Op await_posted(int peer, const Op& mine);
  const void* read(int peer, const Op& theirs) { return memory_->read(peer, theirs.input); }
  // This rank has read everything that it needs for `seq`.
  void finish(uint64_t seq);
  // Waits until no peer reads this rank's input of `mine` any more.
  void await_finished_by_all(const Op& mine);
  // Completes this rank's earlier reads, announces that, and waits until every rank has done the same. Afterwards no
  // peer reads the input of a collective before `mine`.
  void synchronise(const Op& mine);

  void add_reader(Reader& reader) { readers_.push_back(&reader); }
  void remove_reader(Reader& reader) { std::erase(readers_, &reader); }

  // Throws after a failure, and in a forked child of the rank, where the communicator must not be used.
  void throw_if_failed();
  // Makes every rank fail with `message`, and throws it.
  [[noreturn]] void fail(const std::string& message);
  void abort(std::string_view reason) noexcept;
  // This rank will not start another collective.
  void leave() noexcept;

 private:
  [[noreturn]] void throw_failure();
  // Completes this rank's reads of collectives before `seq`.
  void read_until(uint64_t seq);
  void await(const Op& mine, const Awaited& awaited);
  void sleep_until(const Op& mine, const Awaited& awaited);
  int find_last(const Awaited& awaited);
  bool spin(const RankControl& peer, const Awaited& awaited) const;
  // Waits until the slot of `mine` is free on all ranks. If too many collectives are outstanding, reads the oldest
  // first.
  void await_slot(const Op& mine);
  // Lets the program interrupt this rank's wait. The other ranks then learn the reason.
  void heed_interrupt(const Op& mine);
  // Throws if ranks wait for one another in several communicators in a cycle, because none of them can ever continue.
  void fail_in_a_cycle();
  void abort_all(std::string_view reason) noexcept;
  std::string waiting_text(const Op& mine, int peer);
  // Returns the number of a rank in messages.
  int number_of(int rank) const { return options_.numbers.of(rank); }

  std::shared_ptr<DirectMemory> memory_;
  ControlBlock& control_;
  PeerWatch watch_;
  CommOptions options_;
  int rank_, world_size_;
  bool spins_;  // busy-wait before sleeping; true if there is a core for each rank
  ProcessMark process_;
  uint64_t seq_ = 0;
  std::string failure_;           // empty: none
  std::vector<Reader*> readers_;  // sorted by seq
};

}  // namespace zeroshard
