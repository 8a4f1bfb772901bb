#pragma once
#include <memory>
#include <utility>

#include "file/record_store.h"
#include "memory/ledger.h"

namespace zeroshard {

// Owns a RecordStore and counts its buffers in the ledger. Kept tensors may keep the store alive after this object.
// `io` and `ledger` must outlive both.
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
  Reservation reserved_;  // declared before the store, so that the reservation is released after the store
  std::shared_ptr<RecordStore> store_;
};

}  // namespace zeroshard
