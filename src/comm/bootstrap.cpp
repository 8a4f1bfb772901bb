#include "comm/bootstrap.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "base/check.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxMessage = 1000;

// The messages of a rank to its peers. There are two buffers, one for even and one for odd rounds. A rank writes round
// k + 2 only after it has read round k + 1 of every rank, and every rank writes round k + 1 only after it has read
// round k. Thus nobody still reads round k when round k + 2 overwrites it.
struct Mailbox {
  std::atomic<uint64_t> rounds{0};  // number of rounds that this rank has written
  uint32_t sizes[2] = {0, 0};
  char bytes[2][kMaxMessage] = {};
};

class MailboxBootstrap final : public Bootstrap {
 public:
  MailboxBootstrap(std::shared_ptr<Mailbox> boxes, int rank, int world_size, int64_t timeout_ms)
      : boxes_(std::move(boxes)), rank_(rank), world_size_(world_size), timeout_ms_(timeout_ms) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  std::vector<std::string> all_gather(std::string_view mine) override {
    ZS_CHECK(mine.size() <= kMaxMessage, "a bootstrap message has at most ", kMaxMessage, " bytes, got ", mine.size());
    Mailbox& own = boxes_.get()[rank_];
    const size_t parity = round_ % 2;
    std::memcpy(own.bytes[parity], mine.data(), mine.size());
    own.sizes[parity] = static_cast<uint32_t>(mine.size());
    own.rounds.store(++round_, std::memory_order_release);
    std::vector<std::string> all;
    for (int peer = 0; peer < world_size_; ++peer) {
      const Mailbox& box = boxes_.get()[peer];
      await(box, peer);
      all.emplace_back(box.bytes[parity], box.sizes[parity]);
    }
    return all;
  }

 private:
  void await(const Mailbox& box, int peer) const {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
    while (box.rounds.load(std::memory_order_acquire) < round_) {
      if (Clock::now() > deadline)
        throw CommError(concat("rank ", rank_, " waited ", timeout_ms_, " ms for rank ", peer, " to start"));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::shared_ptr<Mailbox> boxes_;  // one mailbox per rank, shared by all ranks
  int rank_, world_size_;
  int64_t timeout_ms_;
  uint64_t round_ = 0;
};

std::vector<std::unique_ptr<Bootstrap>> make_all(std::shared_ptr<Mailbox> boxes, int world_size, int64_t timeout_ms) {
  std::vector<std::unique_ptr<Bootstrap>> all;
  for (int rank = 0; rank < world_size; ++rank)
    all.push_back(std::make_unique<MailboxBootstrap>(boxes, rank, world_size, timeout_ms));
  return all;
}

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> make_thread_bootstraps(int world_size, int64_t timeout_ms) {
  ZS_CHECK(world_size > 0, "world_size must be positive, got ", world_size);
  std::shared_ptr<Mailbox> boxes(new Mailbox[static_cast<size_t>(world_size)], std::default_delete<Mailbox[]>());
  return make_all(std::move(boxes), world_size, timeout_ms);
}

std::vector<std::unique_ptr<Bootstrap>> make_fork_bootstraps(int world_size, int64_t timeout_ms) {
  ZS_CHECK(world_size > 0, "world_size must be positive, got ", world_size);
  const size_t count = static_cast<size_t>(world_size), bytes = count * sizeof(Mailbox);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw CommError(concat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  std::shared_ptr<Mailbox> boxes(static_cast<Mailbox*>(memory), [bytes](Mailbox* first) { ::munmap(first, bytes); });
  for (size_t i = 0; i < count; ++i) new (boxes.get() + i) Mailbox;
  return make_all(std::move(boxes), world_size, timeout_ms);
}

}  // namespace zeroshard
