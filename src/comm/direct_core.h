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

// Ordering and errors among ranks that can read each other's memory. The collectives (direct_ops.cpp) are written on
// top of it. Shared by the communicator and its Works, because a Work may be destroyed last.
class DirectCore {
 public:
  // A collective that still has to read peers' inputs.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t seq() const = 0;
    virtual void read_all() = 0;  // and remove_reader()
  };

  DirectCore(std::shared_ptr<DirectMemory> memory, PeerWatch watch, int rank, const CommOptions& options);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::shared_ptr<DirectMemory>& memory() const { return memory_; }

  // Announces this rank's next collective; peers may read its input of `input_bytes` from now on. Fills in its sequence
  // number and address.
  void post(Op& op, const void* input, int64_t input_bytes);
  // Waits until `peer` has posted the same collective; returns its descriptor. Fails everywhere if it posted another.
  Op await_posted(int peer, const Op& mine);
  const void* read(int peer, const Op& theirs) { return memory_->read(peer, theirs.input); }
  // This rank has read everything it needs for `seq`.
  void finish(uint64_t seq);
  // Waits until no peer reads this rank's input of `mine` any more.
  void await_finished_by_all(const Op& mine);
  // Completes this rank's earlier reads, announces this, and waits until every rank has done so. Afterwards no peer
  // reads an input of a collective before `mine`.
  void synchronise(const Op& mine);

  void add_reader(Reader& reader) { readers_.push_back(&reader); }
  void remove_reader(Reader& reader) { std::erase(readers_, &reader); }

  // Also checks for a forked child of the rank, where nothing of the communicator may be used.
  void throw_if_failed();
  // Makes every rank fail with `message`.
  [[noreturn]] void fail(const std::string& message);
  void abort(std::string_view reason) noexcept;
  // This rank will make no further collective.
  void leave() noexcept;

 private:
  [[noreturn]] void throw_failure();
  // Completes this rank's reads of collectives before `seq`.
  void read_until(uint64_t seq);
  void await(const Op& mine, const Awaited& awaited);
  void sleep_until(const Op& mine, const Awaited& awaited);
  int find_last(const Awaited& awaited);
  bool spin(const RankControl& peer, const Awaited& awaited) const;
  // Waits until the slot of `mine` is free on all ranks. If too many collectives are outstanding, the oldest are read.
  void await_slot(const Op& mine);
  // Lets the program end this rank's wait; the others then learn why.
  void heed_interrupt(const Op& mine);
  // Throws if ranks wait for one another in several communicators, so that none can ever continue.
  void fail_in_a_cycle();
  void abort_all(std::string_view reason) noexcept;
  std::string waiting_text(const Op& mine, int peer);

  std::shared_ptr<DirectMemory> memory_;
  ControlBlock& control_;
  PeerWatch watch_;
  CommOptions options_;
  int rank_, world_size_;
  bool spins_;  // before sleeping, if there is a core for each rank
  ProcessMark process_;
  uint64_t seq_ = 0;
  std::string failure_;           // empty: none
  std::vector<Reader*> readers_;  // in order of seq
};

}  // namespace zeroshard
