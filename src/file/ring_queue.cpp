#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/unique_fd.h"
#include "file/block_queue.h"

namespace zeroshard {
namespace {

constexpr useconds_t kPauseUs = 1000;

int64_t ring_result(int64_t result) {
  return result < 0 ? -errno : result;
}

class KernelRing final : public RingSystem {
 public:
  int setup(unsigned entries, void* params) override {
    return int(ring_result(::syscall(SYS_io_uring_setup, entries, params)));
  }
  int enter(int ring, unsigned to_submit, unsigned to_wait_for) override {
    const unsigned flags = to_wait_for > 0 ? IORING_ENTER_GETEVENTS : 0;
    return int(ring_result(::syscall(SYS_io_uring_enter, ring, to_submit, to_wait_for, flags, nullptr, 0)));
  }
  int register_with(int ring, unsigned what, const void* items, unsigned count) override {
    return int(ring_result(::syscall(SYS_io_uring_register, ring, what, items, count)));
  }
  void* map(int ring, size_t bytes, int64_t offset) override {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    return memory == MAP_FAILED ? nullptr : memory;
  }
};

// Memory that is shared with the kernel.
class Mapping {
 public:
  Mapping(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
  ~Mapping() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  explicit operator bool() const { return memory_ != nullptr; }
  template <typename T>
  T* at(unsigned offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

 private:
  std::byte* memory_;
  size_t bytes_;
};

// Note [The ring]
// A ring consists of a queue of requests and a queue of results, in memory that is shared with the kernel. Each queue
// has a head, from which entries are taken, and a tail, at which entries are added. This class adds requests and moves
// the tail of their queue. The kernel takes the requests in io_uring_enter and moves the head. The kernel adds results
// and moves the tail of their queue, and this class takes the results and moves the head. Each side reads the other
// side's index with acquire, and stores its own index with release. The kernel reads the queue of requests only within
// io_uring_enter, so requests that the kernel did not take still belong to this class.
class RingQueue final : public BlockQueue {
 public:
  // Does not throw if the system refuses the ring. Then why_refused() says why.
  RingQueue(const QueueFiles& files, RingSystem& system) : system_(system), buffers_(files.buffers), fds_(files.fds) {
    io_uring_params params{};
    const int fd = system.setup(unsigned(files.depth), &params);
    if (fd < 0) {
      why_ = fd;
      return;
    }
    ring_ = UniqueFd(fd);
    // Kernels before 5.4 map the two queues separately. This class does not support them, because it needs Linux 5.6
    // anyway (see probe()).
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) return;
    const size_t requests_end = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t results_end = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    const size_t queue_bytes = std::max(requests_end, results_end),
                 entry_bytes = params.sq_entries * sizeof(io_uring_sqe);
    queues_.emplace(system.map(fd, queue_bytes, IORING_OFF_SQ_RING), queue_bytes);
    entries_.emplace(system.map(fd, entry_bytes, IORING_OFF_SQES), entry_bytes);
    if (!*queues_ || !*entries_) {
      why_ = -ENOMEM;
      return;
    }
    offsets_ = params;
    why_ = probe();
    if (why_ == 0) why_ = pass_nothing();
    if (why_ != 0) return;
    register_files_and_buffers();
  }

  ~RingQueue() override {
    // The kernel can still write to the memory of running requests. The caller may free that memory after this
    // destructor, so the destructor waits until the requests have ended.
    std::vector<BlockResult> dropped;
    while (why_ == 0 && under_way_ > 0) {
      if (collect(/*wait=*/true, dropped) < 0) ::usleep(kPauseUs);  // results arrive even if io_uring_enter fails
    }
  }

  int why_refused() const { return why_; }
  std::string_view name() const override { return "io_uring"; }

  void start(std::span<const BlockRequest> requests) override {
    const unsigned mask = *queue<unsigned>(offsets_.sq_off.ring_mask);
    std::atomic_ref<unsigned> tail(*queue<unsigned>(offsets_.sq_off.tail));
    const unsigned first = tail.load(std::memory_order_relaxed);  // relaxed, because only this class writes the tail
    for (size_t i = 0; i < requests.size(); ++i) {
      const unsigned slot = (first + unsigned(i)) & mask;
      *entries_->at<io_uring_sqe>(slot * unsigned(sizeof(io_uring_sqe))) = entry_of(requests[i]);
      queue<unsigned>(offsets_.sq_off.array)[slot] = slot;
    }
    tail.store(first + unsigned(requests.size()), std::memory_order_release);
    submit(requests, first);
  }

  int collect(bool wait, std::vector<BlockResult>& results) override {
    const size_t before = results.size();
    results.insert(results.end(), refused_.begin(), refused_.end());
    refused_.clear();
    take(results);
    while (wait && results.size() == before) {
      const int result = system_.enter(ring_.get(), 0, 1);
      take(results);
      if (result >= 0 || result == -EINTR || results.size() > before) continue;
      if (result != -EAGAIN && result != -EBUSY) return result;
      ::usleep(kPauseUs);  // results arrive even if io_uring_enter fails
    }
    return 0;
  }

 private:
  template <typename T>
  T* queue(unsigned offset) const {
    return queues_->at<T>(offset);
  }

  // Returns 0 if the kernel supports the operations that this class uses (Linux 5.6 does), or -errno.
  int probe() {
    constexpr unsigned kCount = 64;
    alignas(io_uring_probe) std::byte memory[sizeof(io_uring_probe) + kCount * sizeof(io_uring_probe_op)] = {};
    const auto* const found = reinterpret_cast<const io_uring_probe*>(memory);
    const int result = system_.register_with(ring_.get(), IORING_REGISTER_PROBE, memory, kCount);
    if (result < 0) return result;
    for (const unsigned op : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED})
      if (op >= found->ops_len || (found->ops[op].flags & IO_URING_OP_SUPPORTED) == 0) return -ENOSYS;
    return 0;
  }

  // Lets the kernel run a request that does nothing, and waits for its result. Returns 0 or -errno. The attempt is
  // needed because a sandbox can allow everything except io_uring_enter.
  int pass_nothing() {
    io_uring_sqe& entry = *entries_->at<io_uring_sqe>(0);
    entry = {};
    entry.opcode = IORING_OP_NOP;
    *queue<unsigned>(offsets_.sq_off.array) = 0;
    std::atomic_ref<unsigned>(*queue<unsigned>(offsets_.sq_off.tail)).store(1, std::memory_order_release);
    const int taken = retry_interrupted([&] { return system_.enter(ring_.get(), 1, 1); });
    if (taken != 1) return taken < 0 ? taken : -EAGAIN;
    under_way_ = 1;
    std::vector<BlockResult> results;
    while (results.empty())
      if (const int result = collect(/*wait=*/true, results); result < 0) return result;
    return 0;
  }

  // Registers the files and the buffers, which saves work for each request. If the kernel refuses files or buffers,
  // requests use them without registration. The kernel refuses buffers that exceed the limit of locked memory (ulimit
  // -l).
  void register_files_and_buffers() {
    has_files_ = system_.register_with(ring_.get(), IORING_REGISTER_FILES, fds_.data(), unsigned(fds_.size())) >= 0;
    std::vector<iovec> memory;
    for (const std::span<std::byte> buffer : buffers_) memory.push_back({buffer.data(), buffer.size()});
    const bool registered = !memory.empty() && system_.register_with(ring_.get(), IORING_REGISTER_BUFFERS,
                                                                     memory.data(), unsigned(memory.size())) >= 0;
    if (!registered) buffers_.clear();
  }

  io_uring_sqe entry_of(const BlockRequest& request) const {
    io_uring_sqe entry{};
    const bool reads = request.kind == BlockRequest::Kind::kRead;
    entry.opcode = reads ? IORING_OP_READ : IORING_OP_WRITE;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const std::span<std::byte> buffer = buffers_[i];
      if (request.data < buffer.data() || request.data + request.bytes > buffer.data() + buffer.size()) continue;
      entry.opcode = reads ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
      entry.buf_index = uint16_t(i);
    }
    entry.flags = has_files_ ? IOSQE_FIXED_FILE : 0;
    entry.fd = has_files_ ? int(request.file) : fds_.at(request.file);
    entry.addr = reinterpret_cast<uint64_t>(request.data);
    entry.len = unsigned(request.bytes);
    entry.off = uint64_t(request.offset);
    entry.user_data = request.tag;
    return entry;
  }

  // Submits `requests`, whose entries are in the ring from index `first` on. If the kernel takes no more requests, the
  // remaining ones end with the kernel's error, or with -EAGAIN if there is no error.
  void submit(std::span<const BlockRequest> requests, unsigned first) {
    size_t taken = 0;
    while (taken < requests.size()) {
      const int result =
          retry_interrupted([&] { return system_.enter(ring_.get(), unsigned(requests.size() - taken), 0); });
      if (result <= 0) {
        for (const BlockRequest& rest : requests.subspan(taken))
          refused_.push_back({rest.tag, result == 0 ? -EAGAIN : result});
        std::atomic_ref<unsigned>(*queue<unsigned>(offsets_.sq_off.tail))
            .store(first + unsigned(taken), std::memory_order_release);
        return;
      }
      taken += size_t(result);
      under_way_ += result;
    }
  }

  void take(std::vector<BlockResult>& results) {
    std::atomic_ref<unsigned> head(*queue<unsigned>(offsets_.cq_off.head));
    const std::atomic_ref<unsigned> tail(*queue<unsigned>(offsets_.cq_off.tail));
    const unsigned mask = *queue<unsigned>(offsets_.cq_off.ring_mask);
    const auto* const entries = queue<io_uring_cqe>(offsets_.cq_off.cqes);
    unsigned next = head.load(std::memory_order_relaxed);
    for (const unsigned end = tail.load(std::memory_order_acquire); next != end; ++next, --under_way_)
      results.push_back({entries[next & mask].user_data, entries[next & mask].res});
    head.store(next, std::memory_order_release);
  }

  RingSystem& system_;
  std::vector<std::span<std::byte>> buffers_;  // the registered buffers; empty if the kernel refused them
  std::vector<int> fds_;
  bool has_files_ = false;
  UniqueFd ring_;
  std::optional<Mapping> queues_, entries_;
  io_uring_params offsets_{};
  int why_ = -ENOSYS;  // -errno that says why the ring cannot be used; 0: the ring can be used
  int under_way_ = 0;  // requests that the kernel has taken, and whose results this class has not taken
  std::vector<BlockResult> refused_;
};

}  // namespace

RingSystem& kernel_ring() {
  static KernelRing ring;
  return ring;
}

std::unique_ptr<BlockQueue> make_ring_queue(const QueueFiles& files, RingSystem& system, int& why) {
  auto queue = std::make_unique<RingQueue>(files, system);
  why = queue->why_refused();
  if (why != 0) return nullptr;
  return queue;
}

}  // namespace zeroshard
