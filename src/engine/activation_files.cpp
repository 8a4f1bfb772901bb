#include "engine/activation_files.h"

#include <ATen/ops/from_blob.h>

#include <utility>

namespace zeroshard {
namespace {

constexpr uintptr_t kAlignment = 64;  // torch's own: kernels may sum in another order where memory begins elsewhere

}  // namespace

class ActivationFiles::Kept final : public KeptTensor {
 public:
  Kept(std::shared_ptr<RecordStore> store, const at::Tensor& tensor)
      : sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        type_(tensor.scalar_type()),
        store_(std::move(store)),
        id_(store_->put({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()})) {}
  ~Kept() override { store_->drop(id_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  at::Tensor bring_back() override {
    std::byte* const memory = store_->get(id_).release();
    return at::from_blob(
        memory, sizes_, strides_, [](void* data) { FreeMemory()(static_cast<std::byte*>(data)); },
        at::TensorOptions().dtype(type_));
  }
  bool lies_like(const at::Tensor& tensor) const {
    return tensor.scalar_type() == type_ && tensor.sizes() == sizes_ && tensor.strides() == strides_;
  }

 private:
  std::vector<int64_t> sizes_, strides_;
  at::ScalarType type_;
  std::shared_ptr<RecordStore> store_;
  RecordStore::Id id_;
};

ActivationFiles::ActivationFiles(RecordStore::Options options, Io& io, Ledger& ledger,
                                 RecordStore::OnFailure on_failure)
    : reserved_(ledger, Category::kSwap, Tier::kDevice, kRecordStagingBytes),
      store_(std::make_shared<RecordStore>(std::move(options), io, std::move(on_failure))) {}

ActivationFiles::~ActivationFiles() {
  store_->forget_listener();
}

std::shared_ptr<KeptTensor> ActivationFiles::keep(const at::Tensor& tensor) {
  if (!can_leave(tensor, at::kCPU)) return nullptr;
  if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment != 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (auto known = find(tensor)) return known;
  auto kept = std::make_shared<Kept>(store_, tensor);
  known_.push_back({tensor.storage().getWeakStorageImpl(), tensor.const_data_ptr(), uint32_t(tensor._version()), kept});
  return kept;
}

// Of a tensor whose memory was freed there may be another one at its place.
std::shared_ptr<ActivationFiles::Kept> ActivationFiles::find(const at::Tensor& tensor) {
  std::erase_if(known_, [](const Known& known) { return known.storage.expired() || known.kept.expired(); });
  for (const Known& known : known_) {
    if (known.storage._unsafe_get_target() != tensor.storage().unsafeGetStorageImpl()) continue;
    if (known.data != tensor.const_data_ptr() || known.version != uint32_t(tensor._version())) continue;
    auto kept = known.kept.lock();
    if (kept && kept->lies_like(tensor)) return kept;
  }
  return nullptr;
}

}  // namespace zeroshard
