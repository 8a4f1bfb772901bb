#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "activations/activation_keeper.h"
#include "activations/counted_records.h"
#include "activations/kept_tensors.h"

namespace zeroshard {

// Keeps CPU tensors in swap files, for engines on the CPU. If several torch modules give keep() the same tensor, the
// tensor is kept once.
class ActivationFiles final : public ActivationKeeper {
 public:
  explicit ActivationFiles(std::unique_ptr<CountedRecords> files) : files_(std::move(files)) {}

  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) override;
  void begin_backward() override { files_->store()->will_get_newest(); }

 private:
  class Kept;

  std::unique_ptr<CountedRecords> files_;
  KeptTensors<Kept> known_;
};

}  // namespace zeroshard
