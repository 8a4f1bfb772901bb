#pragma once
#include <vector>

#include "checkpoint/slice_data.h"

namespace zeroshard::testing {

// Stands for data of slices that is not in the host's memory: on a device, or in a file.
class Elsewhere final : public SliceData {
 public:
  explicit Elsewhere(std::vector<float>& values) : memory_(values.data()) {}
  void read(int64_t offset, int64_t bytes, void* to) const override { memory_.read(offset, bytes, to); }
  void write(int64_t offset, int64_t bytes, const void* from) override { memory_.write(offset, bytes, from); }

 private:
  HostData memory_;
};

}  // namespace zeroshard::testing
