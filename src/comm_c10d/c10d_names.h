#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

// The only file that names those collectives of c10d that LibTorch 2.13 has renamed. LibTorch 2.13 deprecates the old
// names, but 2.11 has only the old ones. All tensors must be flat and contiguous.
namespace zeroshard::c10d_names {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

template <typename Group>
WorkPtr all_gather(Group& group, at::Tensor out, at::Tensor in) {
  if constexpr (requires { group.all_gather_single(out, in); }) {
    return group.all_gather_single(out, in);
  } else {
    return group._allgather_base(out, in);
  }
}

template <typename Group>
WorkPtr reduce_scatter(Group& group, at::Tensor out, at::Tensor in) {
  if constexpr (requires { group.reduce_scatter_single(out, in); }) {
    return group.reduce_scatter_single(out, in);
  } else {
    return group._reduce_scatter_base(out, in);
  }
}

// `out_splits` has the number of elements that come from each rank, and `in_splits` the number that go to each rank.
// Without splits, all numbers are equal.
template <typename Group>
WorkPtr all_to_all(Group& group, at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits = {},
                   std::vector<int64_t> in_splits = {}) {
  if constexpr (requires { group.all_to_all_single(out, in, out_splits, in_splits); }) {
    return group.all_to_all_single(out, in, out_splits, in_splits);
  } else {
    return group.alltoall_base(out, in, out_splits, in_splits);
  }
}

}  // namespace zeroshard::c10d_names
