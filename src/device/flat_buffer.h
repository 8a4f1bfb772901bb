#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/comm.h"
#include "device/dtype.h"
#include "memory/ledger.h"

namespace zeroshard {

// Owns zeroed memory of one device or of the host. A ledger counts the memory while the FlatBuffer lives. A FlatBuffer
// can be moved, but not copied. If the memory would exceed a limit of the ledger, the constructors and on_host() throw
// OutOfMemory and allocate nothing.
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Allocates ordinary memory of `device`. `writer` is the communicator whose collectives write to the buffer
  // (Comm::still_writes()), or null if there is none. The communicator must outlive the buffer.
  FlatBuffer(int64_t bytes, at::Device device, Ledger& ledger, Category category, const Comm* writer = nullptr);
  // Allocates memory by Comm::allocate(), so that peers can read it directly if the transport allows that. Collective.
  FlatBuffer(Comm& comm, int64_t bytes, at::Device device, Ledger& ledger, Category category, std::string_view tag);
  // Allocates host memory for copies to and from `device`. The ledger counts it on the host's tier. If `pin` is true,
  // the memory is pinned if possible (pinned_memory()), so that the device can copy directly. No copy may be running
  // when the memory is freed.
  static FlatBuffer on_host(int64_t bytes, at::Device device, bool pin, Ledger& ledger, Category category);
  FlatBuffer(FlatBuffer&& other) noexcept;
  FlatBuffer& operator=(FlatBuffer&& other) noexcept;
  ~FlatBuffer();

  explicit operator bool() const { return bool(reserved_); }
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  at::Device device() const { return device_; }
  // Says that `stream` uses the memory. When the buffer is destroyed, other users get the memory only after `stream`
  // has done the work that is then queued on it. Does nothing for memory of Comm::allocate() and pinned memory.
  void freed_after(c10::Stream stream);
  // Returns ordinary memory as a tensor of bytes, and leaves the buffer empty. The tensor owns the memory, and no
  // ledger counts it. Must not be called for other memory.
  at::Tensor take_memory() &&;
  // Returns the memory as take_memory() does, and gives the buffer new zeroed memory. If there is no new memory, throws
  // and changes nothing.
  at::Tensor replace_memory();
  // Returns a 1-D tensor of `numel` elements from byte `offset` on. The tensor does not own the memory.
  at::Tensor view(at::ScalarType type, int64_t offset, int64_t numel) const;

 private:
  void outlive_writer() const noexcept;
  void free() noexcept;

  Reservation reserved_;  // declared before the memory, because memory is counted before it is allocated
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  at::Device device_ = at::kCPU;
  at::Tensor owned_;                    // set for ordinary memory, and for host memory that is not pinned
  std::unique_ptr<Allocation> shared_;  // set for memory of Comm::allocate()
  std::shared_ptr<std::byte> host_;     // set for memory of pinned_memory()
  const Comm* writer_ = nullptr;
};

// Returns a 1-D tensor over memory that the tensor does not own. `device` must have an index, or be the CPU.
at::Tensor view_memory(void* data, int64_t numel, at::ScalarType type, at::Device device);

// Cuts 1-D tensors from one allocation. The tensors do not own their memory. With one allocation instead of several,
// peers map fewer segments, and the system uses larger pages.
class Carver {
 public:
  // Creates a Carver that can cut only empty tensors.
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
