#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <mutex>
#include <vector>

#include "engine/activation_keeper.h"
#include "file/record_store.h"

namespace zeroshard {

// Keeps tensors of the CPU in swap files. A tensor that several parts of a model are given is kept once.
class ActivationFiles final : public ActivationKeeper {
 public:
  // The ledger counts the buffers; `io` and `ledger` outlive this.
  ActivationFiles(RecordStore::Options options, Io& io, Ledger& ledger, RecordStore::OnFailure on_failure);
  ~ActivationFiles() override;
  ActivationFiles(const ActivationFiles&) = delete;
  ActivationFiles& operator=(const ActivationFiles&) = delete;

  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) override;
  void begin_backward() override { store_->will_get_newest(); }
  const RecordStore& store() const { return *store_; }

 private:
  class Kept;
  struct Known {  // a tensor that is kept and may still be in memory
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    uint32_t version;
    std::weak_ptr<Kept> kept;
  };
  std::shared_ptr<Kept> find(const at::Tensor& tensor);

  Reservation reserved_;  // before the store
  std::shared_ptr<RecordStore> store_;
  std::mutex mutex_;
  std::vector<Known> known_;
};

}  // namespace zeroshard
