#include "launch/heartbeat.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/process_name.h"
#include "launch/heartbeat_layout.h"
#include "launch/stack_dump.h"

namespace zeroshard {
namespace heartbeat {

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Slot* slot_at(void* board, size_t index) {
  return reinterpret_cast<Slot*>(static_cast<char*>(board) + sizeof(Header)) + index;
}

Header& header_of(Slot& slot) {
  return *reinterpret_cast<Header*>(reinterpret_cast<char*>(&slot - slot.index) - sizeof(Header));
}

}  // namespace heartbeat

namespace {

using heartbeat::Activity;
using heartbeat::Header;
using heartbeat::Slot;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

constexpr off_t kMaxSlots = 1 << 16;
constexpr int kLockAttempts = 200;

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return {};
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < 0) return {};
  return value;
}

// Returns how many slots a heartbeat board of this file's size has. Returns 0 if the file cannot be a board, because it
// could shrink or grow, or has a wrong size. The number `fd` can belong to any file, because a process can pass its
// variables to children without the descriptor. is_board() checks the contents after the file is mapped.
off_t slots_of(int fd, const struct stat& file) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) return 0;
  const off_t body = file.st_size - off_t{sizeof(Header)};
  const off_t slots = body / off_t{sizeof(Slot)};
  return body > 0 && body % off_t{sizeof(Slot)} == 0 && slots <= kMaxSlots ? slots : 0;
}

bool is_board(const Header& header, const struct stat& file, off_t slots) {
  return header.magic == heartbeat::kMagic && header.inode == file.st_ino && header.slots == slots &&
         header.slot_bytes == sizeof(Slot);
}

std::shared_ptr<Slot> map_slot(int fd, int local_rank) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return nullptr;
  const off_t slots = slots_of(fd, file);
  if (local_rank >= slots) return nullptr;
  const size_t bytes = heartbeat::board_bytes(static_cast<size_t>(slots));
  void* board = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (board == MAP_FAILED) return nullptr;
  const std::shared_ptr<void> mapping(board, [bytes](void* address) { ::munmap(address, bytes); });
  if (!is_board(*static_cast<const Header*>(board), file, slots)) return nullptr;
  Slot* const slot = heartbeat::slot_at(board, static_cast<size_t>(local_rank));
  if (slot->index != static_cast<uint32_t>(local_rank)) return nullptr;
  return {mapping, slot};
}

// Claims the slot for a process, and returns whether that worked. Only one process reports for a rank: the first one
// or, when that has ended, a successor.
bool claim(Slot& slot, pid_t pid) {
  int32_t owner = slot.owner.load();
  while (owner != pid) {
    if (owner != 0 && process_exists(owner)) return false;
    if (slot.owner.compare_exchange_weak(owner, pid)) break;
  }
  return true;
}

int32_t thread_id() {
  return static_cast<int32_t>(::syscall(SYS_gettid));
}

// Takes the lock of Note [Sequence lock] as a writer, which also keeps out other threads of this rank. Gives up after a
// while and returns false, because a thread that was cancelled while it had the lock must not stop the others.
bool begin_write(Slot& slot) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    uint32_t sequence = slot.sequence.load(memory_order_relaxed);
    if (sequence % 2 == 0 && slot.sequence.compare_exchange_weak(sequence, sequence + 1, memory_order_acquire)) {
      return true;
    }
    ::sched_yield();
  }
  return false;
}

void end_write(Slot& slot) {
  slot.sequence.store(slot.sequence.load(memory_order_relaxed) + 1, memory_order_release);
}

// Claims this rank's slot for process `pid`, installs the stack dump and returns the slot. Returns null if the rank has
// no slot, or if another living process has claimed it.
std::shared_ptr<Slot> connect(pid_t pid) {
  const auto fd = number_in(heartbeat::kVariable), local_rank = number_in("LOCAL_RANK");
  if (!fd || !local_rank) return nullptr;
  std::shared_ptr<Slot> slot = map_slot(*fd, *local_rank);
  if (!slot || !claim(*slot, pid)) return nullptr;
  install_stack_dump(slot);
  return slot;
}

}  // namespace

Heartbeat Heartbeat::from_environment() noexcept {
  try {
    const pid_t pid = ::getpid();
    std::shared_ptr<Slot> slot = connect(pid);
    if (!slot) return {};
    Heartbeat result;
    result.header_ = &heartbeat::header_of(*slot);
    result.slot_ = std::move(slot);
    result.pid_ = pid;
    return result;
  } catch (...) {  // out of memory
    return {};
  }
}

bool Heartbeat::mine() const noexcept {
  return slot_ && ::getpid() == pid_;
}

void Heartbeat::beat(int64_t step) noexcept {
  if (!mine()) return;
  slot_->step = step;
  slot_->progress_ns = heartbeat::now_ns();
  slot_->activity.store(Activity::kBeating, memory_order_release);
}

void Heartbeat::finish() noexcept {
  if (!mine()) return;
  Activity beating = Activity::kBeating;
  slot_->activity.compare_exchange_strong(beating, Activity::kFinished);
}

void Heartbeat::waiting(std::string_view where) noexcept {
  if (!mine() || !begin_write(*slot_)) return;
  const int64_t now = heartbeat::now_ns();
  const size_t length = std::min(where.size(), heartbeat::kTextBytes);
  slot_->waiting_thread.store(thread_id(), memory_order_release);
  slot_->waiting_since_ns.store(now, memory_order_release);
  slot_->length.store(length, memory_order_release);
  for (size_t begin = 0; begin < length; begin += 8) {
    uint64_t word = 0;
    std::memcpy(&word, where.data() + begin, std::min<size_t>(8, length - begin));
    slot_->text[begin / 8].store(word, memory_order_release);
  }
  end_write(*slot_);
  slot_->progress_ns = now;
}

void Heartbeat::done_waiting() noexcept {
  if (!mine()) return;
  slot_->progress_ns = heartbeat::now_ns();
  // If another thread has begun to wait after this one, that thread's wait stays.
  if (slot_->waiting_thread.load(memory_order_relaxed) != thread_id() || !begin_write(*slot_)) return;
  slot_->waiting_thread.store(0, memory_order_release);
  slot_->waiting_since_ns.store(0, memory_order_release);
  end_write(*slot_);
}

std::string Heartbeat::news() const {
  if (!mine()) return {};
  const size_t length = std::atomic_ref(header_->news_bytes).load(memory_order_acquire);
  return {header_->news.data(), std::min(length, heartbeat::kNewsBytes)};
}

MeetingSign::MeetingSign(int world_size) noexcept : pid_(::getpid()) {
  try {
    slot_ = connect(pid_);
  } catch (...) {  // out of memory
  }
  if (!slot_) return;
  slot_->meeting_size = world_size;
  slot_->meeting_since_ns = heartbeat::now_ns();
}

MeetingSign::~MeetingSign() {
  if (slot_ && ::getpid() == pid_) slot_->meeting_since_ns = 0;
}

}  // namespace zeroshard
