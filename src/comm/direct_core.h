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

// Orders the collectives of ranks that can read each other's memory, and tells all ranks about errors. DirectComm and
// its Works share a core, because a Work can be destroyed after the communicator.
class DirectCore {
 public:
  // A collective that has not yet read the inputs of its peers.
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

  // Announces this rank's next collective, and sets its number and the input's address in `op`. From now on peers can
  // read `input`, which has `input_bytes` bytes, or a copy of it (see DirectMemory::publish()). If kRing collectives
  // are outstanding, first completes this rank's reads of the oldest ones, and waits until peers have finished the
  // oldest one. If there is no room for a copy, waits until peers no longer need older copies. Fails if the copy never
  // has room, or if this rank itself must first finish a collective to make room.
  void post(Op& op, const void* input, int64_t input_bytes);
  // Waits until `peer` has posted the collective `mine`, and returns the Op that the peer posted. If this Op is another
  // collective, fails on all ranks.
  Op await_posted(int peer, const Op& mine);
  const void* read(int peer, const Op& theirs) { return memory_->read(peer, theirs.input); }
  // Says that this rank has read everything that it needs for collective `seq`.
  void finish(uint64_t seq);
  // Waits until no peer reads the input of this rank's collective `mine` any more.
  void await_finished_by_all(const Op& mine);
  // Completes this rank's reads for collectives before `mine`, finishes `mine`, and waits until every rank has done the
  // same. Afterwards no peer reads an input of these collectives any more, except of exchanges that are not released.
  void synchronise(const Op& mine);

  void add_reader(Reader& reader) { readers_.push_back(&reader); }
  void remove_reader(Reader& reader) { std::erase(readers_, &reader); }

  // Throws CommError if the communicator has failed on any rank. Also throws it in a forked child of the rank, because
  // the child must not use the communicator.
  void throw_if_failed();
  // Makes every rank fail with `message` in this communicator and in all others of the wait graph. Throws CommError
  // with the message of the first failure on any rank.
  [[noreturn]] void fail(const std::string& message);
  void abort(std::string_view reason) noexcept;
  // Announces that this rank will not start another collective.
  void leave() noexcept;

 private:
  [[noreturn]] void throw_failure();
  // Completes this rank's reads for collectives before `seq`. Exchanges are not among them.
  void read_until(uint64_t seq);
  void await(const Op& mine, const Awaited& awaited);
  void sleep_until(const Op& mine, const Awaited& awaited);
  int find_last(const Awaited& awaited);
  bool spin(const RankControl& peer, const Awaited& awaited) const;
  // Waits until the slot of `mine` is free on all ranks. If too many collectives are outstanding, completes the reads
  // of the oldest ones first. Fails if the collective in the slot is then not finished, because it is an exchange that
  // was not released, or a Work that was destroyed without a wait.
  void await_slot(const Op& mine);
  // Lets the program interrupt this rank's wait. An interrupt makes the other ranks fail with a message that names this
  // rank.
  void heed_interrupt(const Op& mine);
  // If ranks wait for one another in a cycle over several communicators of the wait graph, fails, because none of them
  // could ever continue.
  void fail_in_a_cycle();
  void abort_all(std::string_view reason) noexcept;
  std::string waiting_text(const Op& mine, int peer);
  // Returns the number by which messages name `rank`.
  int number_of(int rank) const { return options_.numbers.of(rank); }

  std::shared_ptr<DirectMemory> memory_;
  ControlBlock& control_;
  PeerWatch watch_;
  CommOptions options_;
  int rank_, world_size_;
  bool spins_;  // whether this rank busy-waits before it sleeps; true if there is a core for each rank
  ProcessMark process_;
  uint64_t seq_ = 0;
  std::string failure_;           // empty: no failure
  std::vector<Reader*> readers_;  // sorted by seq
};

}  // namespace zeroshard
