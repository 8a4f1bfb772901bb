#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/comm.h"
#include "device/dtype.h"
#include "memory/ledger.h"

namespace zeroshard {

// Zeroed memory of one device, counted in a ledger for as long as it lives. Movable, not copyable. Making one throws
// OutOfMemory, before it allocates, where a limit of the ledger would be passed.
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Ordinary memory of `device`. `writer` writes to it by collectives (Comm::still_writes) and must outlive it.
  FlatBuffer(int64_t bytes, at::Device device, Ledger& ledger, Category category, const Comm* writer = nullptr);
  // Memory that peers can read directly. Collective: see Comm::allocate.
  FlatBuffer(Comm& comm, int64_t bytes, at::Device device, Ledger& ledger, Category category, std::string_view tag);
  // Host memory beside `device`, which the ledger counts on the host's tier. With `pin` the device copies to and from
  // it by itself (pinned_memory()). No copy may be under way when it goes.
  static FlatBuffer on_host(int64_t bytes, at::Device device, bool pin, Ledger& ledger, Category category);
  FlatBuffer(FlatBuffer&& other) noexcept;
  FlatBuffer& operator=(FlatBuffer&& other) noexcept;
  ~FlatBuffer();

  explicit operator bool() const { return bool(reserved_); }
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  at::Device device() const { return device_; }
  // Its memory is not lent to others before `stream` has done what it was given until it is freed.
  void freed_after(c10::Stream stream);
  // Ordinary memory as a tensor of bytes, which owns it and is in no ledger.
  at::Tensor take_memory() &&;
  // Returns the memory like take_memory(), and gives the buffer other zeroed memory. Throws if there is no memory; then
  // nothing has changed.
  at::Tensor replace_memory();
  // A 1-D tensor over `numel` elements from byte `offset` on. It does not own the memory.
  at::Tensor view(at::ScalarType type, int64_t offset, int64_t numel) const;

 private:
  void outlive_writer() const noexcept;
  void free() noexcept;

  Reservation reserved_;  // before the memory, and released before it
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  at::Device device_ = at::kCPU;
  at::Tensor owned_;                    // ordinary memory ...
  std::unique_ptr<Allocation> shared_;  // ... or memory of the transport ...
  std::shared_ptr<std::byte> host_;     // ... or of the host
  const Comm* writer_ = nullptr;
};

// A 1-D tensor over memory it does not own. `device` has an index, unless it is the CPU.
at::Tensor view_memory(void* data, int64_t numel, at::ScalarType type, at::Device device);

// Cuts 1-D tensors from one allocation: peers map fewer segments, and pages are larger.
class Carver {
 public:
  // Of no elements.
  explicit Carver(at::Device device) : device_(device) {}
  explicit Carver(const FlatBuffer& buffer) : next_(buffer.data()), device_(buffer.device()) {}
  at::Tensor take(DType dtype, int64_t numel) {
    at::Tensor view = view_memory(next_, numel, to_scalar_type(dtype), device_);
    next_ += numel * element_size(dtype);
    return view;
  }

 private:
  char* next_ = nullptr;
  at::Device device_;
};

}  // namespace zeroshard
