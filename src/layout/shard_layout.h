#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace zeroshard {

// A half-open range of elements in a flat buffer.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// `range - origin` has the same elements as `range`, with positions counted from `origin`. `range + origin` undoes
// that.
inline Range operator-(Range range, int64_t origin) {
  return {range.begin - origin, range.end - origin};
}
inline Range operator+(Range range, int64_t origin) {
  return {range.begin + origin, range.end + origin};
}

// Returns the elements that are in both ranges, or {0, 0} if there are none.
Range intersect(Range a, Range b);

// The number of elements of a block. Shards and their parts are cut only between blocks, and so between cache lines.
// Code that computes the gradient norm with LibTorch's operators sums block by block, so that the sums do not depend on
// the number of ranks.
inline constexpr int64_t kBlockNumel = 1024;

// The number of neighbouring elements whose codes of one moment share a scale, if moments are stored in 8 bits.
inline constexpr int64_t kScaledNumel = 256;
// The fewest elements of a parameter whose moments can be stored in 8 bits. Smaller parameters keep fp32 moments.
inline constexpr int64_t kLeastCodedNumel = 4096;

// Maps parameters to a flat buffer that is cut into equal shards, one for each rank of a group of ranks. If several
// groups of ranks share one copy of the optimizer states, each shard is cut once more into equal parts, one for each
// group of ranks. Padding is only between parameters, if their alignment needs it, and at the end of the buffer. So the
// flat position of an element does not depend on world_size, and another number of ranks can read a checkpoint. The
// class has no tensors, so that the planner can use the same layout as the runtime.
class ShardLayout {
 public:
  // `world_size` is the number of shards, and `parts` is the number of parts of each shard. Parameters keep the order
  // of `numels`. A numel may be 0. Each parameter begins at a multiple of `alignment`, which must divide kBlockNumel.
  // Throws ValueError for a negative numel, for a world_size or parts below 1, and for about 2^62 elements or more.
  ShardLayout(std::span<const int64_t> numels, int world_size, int64_t alignment = 1, int parts = 1);

  int world_size() const { return world_size_; }
  int parts() const { return parts_; }
  size_t num_params() const { return params_.size(); }
  int64_t numel() const { return params_.empty() ? 0 : params_.back().end; }  // includes the padding between parameters
  int64_t part_numel() const { return part_numel_; }                          // a multiple of kBlockNumel
  int64_t shard_numel() const { return part_numel_ * parts_; }
  int64_t padded_numel() const { return shard_numel() * world_size_; }

  const Range& param(size_t index) const { return params_.at(index); }
  // Returns the padding after parameter `index`, up to the next parameter or to the end of the last shard.
  Range padding_behind(size_t index) const {
    return {param(index).end, index + 1 < params_.size() ? params_[index + 1].begin : padded_numel()};
  }
  // For shard() and part(), the ranks of all groups that share the states are numbered one group after another. So
  // `rank` is below world_size() * parts(). Ranks with the same index in their groups have the same shard, and
  // different parts of it.
  Range shard(int rank) const {
    const int64_t begin = rank % world_size_ * shard_numel();
    return {begin, begin + shard_numel()};
  }
  Range part(int rank) const {
    const int64_t begin = shard(rank).begin + rank / world_size_ * part_numel_;
    return {begin, begin + part_numel_};
  }

  // Returns the elements of parameter `index` in the part of `rank`, as flat positions. The range is empty if there are
  // none.
  Range owned(size_t index, int rank) const { return intersect(param(index), part(rank)); }

 private:
  std::vector<Range> params_;
  int world_size_, parts_;
  int64_t part_numel_ = 0;
};

}  // namespace zeroshard
