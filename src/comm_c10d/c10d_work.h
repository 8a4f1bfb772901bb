#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "comm_c10d/c10d_core.h"
#include "device/kept_memory.h"
#include "device/streams.h"

namespace zeroshard {

// The Work of an operation that is complete before its caller gets the Work.
class DoneWork final : public Work {
 public:
  void wait() override {}
};

// The Work of an operation that is queued on the device's current stream when the constructor is called. wait() makes
// the stream that is current in wait() wait for the operation. On the CPU, the operation is complete already.
class StreamWork final : public Work {
 public:
  explicit StreamWork(at::Device device) : uses_(device) {
    uses_.share();
    uses_.end();
  }
  void wait() override { uses_.take(); }

 private:
  StreamUses uses_;
};

class C10dWork final : public Work, private C10dCore::Pending {
 public:
  // wait() calls `then` once. On the CPU, it does so when the collective is complete. On a device, it does so when the
  // current stream has been told to wait for the collective.
  C10dWork(std::shared_ptr<C10dCore> core, const Op& op, c10::intrusive_ptr<c10d::Work> work,
           std::function<void()> then = {})
      : core_(std::move(core)), op_(op), work_(std::move(work)), then_(std::move(then)) {
    core_->add(*this);
  }
  ~C10dWork() override {
    core_->remove(*this);
    if (work_) core_->leave(*work_);
  }
  C10dWork(const C10dWork&) = delete;
  C10dWork& operator=(const C10dWork&) = delete;

  void wait() override {
    if (!work_) return;
    core_->complete(*work_, op_);
    if (then_) then_();
    core_->remove(*this);
    work_.reset();
  }

 private:
  void wait_pending() override { wait(); }

  std::shared_ptr<C10dCore> core_;
  Op op_;
  c10::intrusive_ptr<c10d::Work> work_;  // null: wait() has returned
  std::function<void()> then_;
};

// An exchange whose pieces are ready when `work` is done. `work` is an all-to-all into scratch, or an exchange of
// Tiers. If there is only one rank, whose input is the only piece, or if there are no elements, `work` is a DoneWork.
// When `work` is done, no rank reads this rank's input any more, so release() and drain() need not wait for anything
// else.
class C10dExchange final : public Exchange {
 public:
  C10dExchange(std::unique_ptr<Work> work, std::vector<const void*> pieces, DType dtype)
      : work_(std::move(work)), pieces_(std::move(pieces)), dtype_(dtype) {}
  void wait() override { work_->wait(); }
  std::span<const void* const> pieces() const override { return pieces_; }
  DType dtype() const override { return dtype_; }
  void release() override { work_->wait(); }
  void drain() override { work_->wait(); }

 private:
  std::unique_ptr<Work> work_;
  std::vector<const void*> pieces_;
  DType dtype_;
};

class C10dAllocation final : public Allocation {
 public:
  C10dAllocation(std::shared_ptr<C10dCore> core, at::Tensor memory, int64_t bytes)
      : core_(std::move(core)), memory_(std::move(memory)), bytes_(bytes) {}
  ~C10dAllocation() override {
    if (core_->still_writes()) keep_for_ever(std::move(memory_));
    free_after_current_stream(std::move(memory_));
  }
  C10dAllocation(const C10dAllocation&) = delete;
  C10dAllocation& operator=(const C10dAllocation&) = delete;
  void* data() const override { return memory_.data_ptr(); }
  int64_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<C10dCore> core_;
  at::Tensor memory_;
  int64_t bytes_;
};

}  // namespace zeroshard
