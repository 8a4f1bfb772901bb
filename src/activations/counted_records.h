#pragma once
#include <memory>
#include <utility>

#include "file/record_store.h"
#include "memory/ledger.h"

namespace zeroshard {

// Owns a RecordStore, and counts the memory of the store's write buffers in the ledger. Kept tensors share the store,
// so the store can outlive this object. `io` must outlive the store, and `ledger` must outlive this object. After this
// object was destroyed, the store does not call `on_failure` any more.
class CountedRecords {
 public:
  CountedRecords(RecordStore::Options options, Io& io, Ledger& ledger, Tier tier, RecordStore::OnFailure on_failure)
      : reserved_(ledger, Category::kSwap, tier, kRecordStagingBytes),
        store_(std::make_shared<RecordStore>(std::move(options), io, std::move(on_failure))) {}
  ~CountedRecords() { store_->forget_listener(); }
  CountedRecords(const CountedRecords&) = delete;
  CountedRecords& operator=(const CountedRecords&) = delete;

  const std::shared_ptr<RecordStore>& store() const { return store_; }

 private:
  Reservation reserved_;  // declared before store_, so that it is released after store_
  std::shared_ptr<RecordStore> store_;
};

}  // namespace zeroshard
