#pragma once
#include <cstdint>
#include <optional>

#include "comm/control_block.h"

namespace zeroshard {

// A new segment, as its owner describes it to its peers.
struct SegmentGrant {
  uint64_t segment = 0;
  uint64_t inode = 0;
  int fd = -1;
  void* data = nullptr;  // the segment in the owner's address space
};

// Gives ranks access to each other's memory. There is an implementation for ranks that are threads and one for ranks
// that are processes. DirectCore and DirectComm are the same for both. Any thread may call control() and free(). Only
// the communicator's thread may call the other functions.
class DirectMemory {
 public:
  virtual ~DirectMemory() = default;
  virtual ControlBlock& control() = 0;

  // Makes `bytes` bytes at `data` readable by peers until all ranks have finished collective `seq`. Copies the data
  // first if it does not lie in a segment. If there is no room for the copy, returns nothing. The caller must then try
  // again when all ranks have finished collective oldest_staged().
  virtual std::optional<PeerAddress> publish(const void* data, int64_t bytes, uint64_t seq) = 0;
  // Returns the number of the oldest collective whose input was copied and still takes room. Returns 0 if there is no
  // copy, so that no room can become free.
  virtual uint64_t oldest_staged() const { return 0; }
  virtual const void* read(int peer, const PeerAddress& address) = 0;

  // The calls for a segment, in this order: the owner calls create(), every peer calls attach(), the owner calls
  // attached() and at the end free(), and the peers call sweep(), which gives up all segments that their owners have
  // freed.
  virtual SegmentGrant create(int64_t bytes) = 0;
  virtual void attach(int peer, const SegmentGrant& grant, int64_t bytes) = 0;
  virtual void attached(const SegmentGrant& grant) = 0;
  virtual void free(uint64_t segment) noexcept = 0;
  virtual void sweep() noexcept {}
};

}  // namespace zeroshard
