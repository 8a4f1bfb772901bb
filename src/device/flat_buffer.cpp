#include "device/flat_buffer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <utility>

#include "base/align.h"
#include "base/format.h"
#include "base/out_of_memory.h"
#include "device/current_device.h"
#include "device/kept_memory.h"
#include "device/pinned_memory.h"
#include "device/streams.h"

namespace zeroshard {
namespace {

constexpr int64_t kHugePage = 2 << 20;

// Allocates zeroed memory of `device`. On the CPU, asks the system for pages of 2 MiB if `bytes` is at least 2 MiB,
// because gathers and optimizer passes go through whole buffers and take 10 % longer with small pages.
at::Tensor allocate_memory(int64_t bytes, at::Device device, Category category) {
  if (!device.is_cpu() || bytes < kHugePage)
    return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  const size_t length = size_t(align_up(bytes, kHugePage));
  void* const data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw OutOfMemory(concat("there is no memory for ", bytes, " bytes of ", name_of(category)));
  ::madvise(data, length, MADV_HUGEPAGE);
  return at::from_blob(
      data, {bytes}, [length](void* memory) { ::munmap(memory, length); }, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

FlatBuffer::FlatBuffer(int64_t bytes, at::Device device, Ledger& ledger, Category category, const Comm* writer)
    : reserved_(ledger, category, Tier::kDevice, bytes),
      bytes_(bytes),
      device_(with_index(device)),
      owned_(allocate_memory(bytes, device_, category)),
      writer_(writer) {
  data_ = static_cast<char*>(owned_.data_ptr());
}

FlatBuffer::FlatBuffer(Comm& comm, int64_t bytes, at::Device device, Ledger& ledger, Category category,
                       std::string_view tag)
    : reserved_(ledger, category, Tier::kDevice, bytes),
      bytes_(bytes),
      device_(with_index(device)),
      shared_(comm.allocate(bytes, tag)) {
  data_ = static_cast<char*>(shared_->data());
}

FlatBuffer FlatBuffer::on_host(int64_t bytes, at::Device device, bool pin, Ledger& ledger, Category category) {
  FlatBuffer buffer;
  buffer.reserved_ = Reservation(ledger, category, Tier::kHost, bytes);
  buffer.bytes_ = bytes;
  if (bytes > 0 && pin) {
    buffer.host_ = pinned_memory(bytes, device);
    buffer.data_ = reinterpret_cast<char*>(buffer.host_.get());
    std::memset(buffer.data_, 0, size_t(bytes));  // pinning has made all pages, so this causes no page faults
  } else {
    buffer.owned_ = allocate_memory(bytes, at::kCPU, category);
    buffer.data_ = static_cast<char*>(buffer.owned_.data_ptr());
  }
  return buffer;
}

FlatBuffer::FlatBuffer(FlatBuffer&& other) noexcept {
  *this = std::move(other);
}

FlatBuffer& FlatBuffer::operator=(FlatBuffer&& other) noexcept {
  if (this == &other) return *this;
  free();
  reserved_ = std::move(other.reserved_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  device_ = other.device_;
  owned_ = std::move(other.owned_);
  shared_ = std::move(other.shared_);
  host_ = std::move(other.host_);
  writer_ = other.writer_;
  return *this;
}

FlatBuffer::~FlatBuffer() {
  free();
}

// Keeps ordinary memory forever if a failed or abandoned collective might still write to it.
void FlatBuffer::outlive_writer() const noexcept {
  if (writer_ && owned_.defined() && writer_->still_writes()) keep_for_ever(owned_);
}

void FlatBuffer::free() noexcept {
  reserved_.release();
  outlive_writer();
  free_after_current_stream(std::move(owned_));
  shared_ = nullptr;
  host_ = nullptr;
}

void FlatBuffer::freed_after(c10::Stream stream) {
  if (owned_.defined()) owned_.record_stream(stream);
}

at::Tensor FlatBuffer::take_memory() && {
  outlive_writer();
  at::Tensor memory = std::move(owned_);
  free();
  data_ = nullptr;
  bytes_ = 0;
  return memory;
}

at::Tensor FlatBuffer::replace_memory() {
  at::Tensor memory = allocate_memory(bytes_, device_, reserved_.category());
  outlive_writer();
  std::swap(memory, owned_);
  data_ = static_cast<char*>(owned_.data_ptr());
  return memory;
}

at::Tensor FlatBuffer::view(at::ScalarType type, int64_t offset, int64_t numel) const {
  return view_memory(data_ + offset, numel, type, device_);
}

at::Tensor view_memory(void* data, int64_t numel, at::ScalarType type, at::Device device) {
  // The target device is given because torch would otherwise look up the device of the pointer, which is null if there
  // are no elements.
  return at::for_blob(data, {numel})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace zeroshard
