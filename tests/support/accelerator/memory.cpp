#include "support/accelerator/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace zeroshard::accelerator {
namespace {

constexpr size_t kAlign = 512;
constexpr size_t kPage = 4096;  // as memory that CUDA pins

struct Block {
  size_t bytes = 0;
  StreamKey stream;
  std::vector<StreamKey> users;  // other streams
};

struct Device {
  uintptr_t begin = 0, next = 0;
  std::map<uintptr_t, Block> blocks;
  std::map<std::pair<StreamKey, size_t>, std::vector<uintptr_t>> free;
  int64_t allocated = 0, peak = 0;
};

struct Memory {
  std::mutex mutex;
  std::array<Device, kDevices> devices;

  Memory() {
    for (Device& device : devices) {
      void* const range =
          ::mmap(nullptr, 2 * kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(range != MAP_FAILED, "no address space for a simulated device");
      device.begin = device.next = reinterpret_cast<uintptr_t>(range);
      TORCH_CHECK(::mprotect(static_cast<char*>(range) + kArenaBytes, kArenaBytes, PROT_READ | PROT_WRITE) == 0);
    }
  }
};

Memory& memory() {
  static auto& memory = *new Memory();  // tensors may be freed after main
  return memory;
}

void poison(StreamKey stream, const char* what, uintptr_t begin, size_t bytes) {
  Streams::get().enqueue(stream, WorkKind::kOther, what, {{begin, begin + bytes, true}},
                         [begin, bytes] { std::memset(real_address(reinterpret_cast<void*>(begin)), 0xFF, bytes); });
}

uintptr_t allocate(int index, size_t bytes) {
  Memory& all = memory();
  const StreamKey stream = current_stream(index);
  uintptr_t begin = 0;
  {
    const std::scoped_lock lock(all.mutex);
    Device& device = all.devices[static_cast<size_t>(index)];
    std::vector<uintptr_t>& free = device.free[{stream, bytes}];
    if (!free.empty()) {
      begin = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, device.next + bytes <= device.begin + kArenaBytes,
                       "the simulated device has no memory for ", bytes, " bytes");
      begin = device.next;
      device.next += bytes;
    }
    device.blocks[begin] = {bytes, stream, {}};
    device.allocated += static_cast<int64_t>(bytes);
    device.peak = std::max(device.peak, device.allocated);
  }
  poison(stream, "fresh memory", begin, bytes);
  return begin;
}

void free_block(void* address) {
  Memory& all = memory();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const auto index = static_cast<size_t>(device_of(address));
  Block block;
  {
    const std::scoped_lock lock(all.mutex);
    Device& device = all.devices[index];
    block = std::move(device.blocks.extract(begin).mapped());
    device.allocated -= static_cast<int64_t>(block.bytes);
  }
  for (const StreamKey user : block.users) Streams::get().wait_on_stream(block.stream, Streams::get().record(user));
  poison(block.stream, "free", begin, block.bytes);
  const std::scoped_lock lock(all.mutex);
  all.devices[index].free[{block.stream, block.bytes}].push_back(begin);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, where};
    auto* const data = reinterpret_cast<void*>(accelerator::allocate(device, (bytes + kAlign - 1) / kAlign * kAlign));
    return {data, data, &free_block, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "copy_data of device memory"); }
};

struct Pinned {
  size_t bytes = 0;
  std::vector<Mark> uses;
  bool freed = false;
};

struct PinnedMemory {
  std::atomic<bool> refuses = false;
  std::atomic<int64_t> frees_in_use = 0;
  std::mutex mutex;
  std::map<uintptr_t, Pinned> blocks;

  static PinnedMemory& get() {
    static auto& memory = *new PinnedMemory();
    return memory;
  }
  // The block that holds the address. The mutex is held.
  std::map<uintptr_t, Pinned>::iterator find(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return blocks.end();
    --after;
    return at < after->first + after->second.bytes ? after : blocks.end();
  }
};

void free_pinned(void* address) {
  PinnedMemory& all = PinnedMemory::get();
  const std::scoped_lock lock(all.mutex);
  all.find(address)->second.freed = true;
  for (auto at = all.blocks.begin(); at != all.blocks.end();) {
    Pinned& block = at->second;
    bool done = block.freed;
    for (const Mark& use : block.uses) done = done && Streams::get().is_done(use);
    if (!done && at->first == reinterpret_cast<uintptr_t>(address)) ++all.frees_in_use;
    if (done) std::free(reinterpret_cast<void*>(at->first));
    at = done ? all.blocks.erase(at) : std::next(at);
  }
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    const size_t size = (bytes + kAlign - 1) / kAlign * kAlign;
    void* data = nullptr;
    if (::posix_memalign(&data, kPage, size) != 0) data = nullptr;
    PinnedMemory& all = PinnedMemory::get();
    if (all.refuses) std::free(std::exchange(data, nullptr));
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "no memory to pin");
    std::memset(data, 0xFF, size);
    const std::scoped_lock lock(all.mutex);
    all.blocks[reinterpret_cast<uintptr_t>(data)] = {size, {}, false};
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

thread_local int device_of_thread = 0;
thread_local std::array<int64_t, kDevices> streams_of_thread{};

}  // namespace

void* real_address(const void* device_address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device_address) + kArenaBytes);
}

int device_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto& devices = memory().devices;  // their ranges never change
  for (int i = 0; i < kDevices; ++i) {
    const uintptr_t begin = devices[static_cast<size_t>(i)].begin;
    if (at >= begin && at < begin + kArenaBytes) return i;
  }
  return -1;
}

c10::Allocator& device_allocator() {
  static auto& allocator = *new DeviceAllocator();
  return allocator;
}

void use_on_stream(const c10::DataPtr& data, c10::Stream stream) {
  Memory& all = memory();
  const int index = device_of(data.get());
  if (index < 0) return;
  const std::scoped_lock lock(all.mutex);
  auto& blocks = all.devices[static_cast<size_t>(index)].blocks;
  const auto block = blocks.find(reinterpret_cast<uintptr_t>(data.get()));
  const StreamKey user{stream.device_index(), stream.id()};
  if (block != blocks.end() && user != block->second.stream) block->second.users.push_back(user);
}

int64_t allocated_bytes(int device) {
  Memory& all = memory();
  const std::scoped_lock lock(all.mutex);
  return all.devices[static_cast<size_t>(device)].allocated;
}

int64_t peak_bytes(int device) {
  Memory& all = memory();
  const std::scoped_lock lock(all.mutex);
  return all.devices[static_cast<size_t>(device)].peak;
}

void reset_peak(int device) {
  Memory& all = memory();
  const std::scoped_lock lock(all.mutex);
  Device& of = all.devices[static_cast<size_t>(device)];
  of.peak = of.allocated;
}

c10::Allocator& pinned_allocator() {
  static auto& allocator = *new PinnedAllocator();
  return allocator;
}

bool is_pinned(const void* address) {
  PinnedMemory& all = PinnedMemory::get();
  const std::scoped_lock lock(all.mutex);
  return all.find(address) != all.blocks.end();
}

void refuse_to_pin(bool refuses) {
  PinnedMemory::get().refuses = refuses;
}

int64_t pinned_frees_in_use() {
  return PinnedMemory::get().frees_in_use;
}

int64_t pinned_bytes() {
  PinnedMemory& all = PinnedMemory::get();
  const std::scoped_lock lock(all.mutex);
  int64_t bytes = 0;
  for (const auto& [begin, block] : all.blocks) bytes += block.freed ? 0 : static_cast<int64_t>(block.bytes);
  return bytes;
}

void use_pinned(const void* address, const Mark& mark) {
  PinnedMemory& all = PinnedMemory::get();
  const std::scoped_lock lock(all.mutex);
  if (const auto block = all.find(address); block != all.blocks.end()) block->second.uses.push_back(mark);
}

int current_device() {
  return device_of_thread;
}

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "device is ", device, ", expected 0 to ", kDevices - 1);
  device_of_thread = device;
}

StreamKey current_stream(int device) {
  return {device, streams_of_thread[static_cast<size_t>(device)]};
}

void set_current_stream(StreamKey stream) {
  streams_of_thread[static_cast<size_t>(stream.device)] = stream.id;
}

}  // namespace zeroshard::accelerator
