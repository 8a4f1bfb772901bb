#include "launch/heartbeat_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/process_name.h"
#include "launch/heartbeat_layout.h"

namespace zeroshard {
namespace {

constexpr int kReadAttempts = 1000;
constexpr int kLowestFd = 100;  // least number of the descriptor; high, because shell scripts use small ones

UniqueFd make_memory_file() {
#ifdef MFD_NOEXEC_SEAL
  constexpr unsigned kNoExec = MFD_NOEXEC_SEAL;
#else
  constexpr unsigned kNoExec = 0x0008U;
#endif
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL. Later kernels can require it.
  UniqueFd file(::memfd_create("zeroshard-heartbeat", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExec));
  if (!file) file = UniqueFd(::memfd_create("zeroshard-heartbeat", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_errno("cannot make shared memory for heartbeats");
  for (const int lowest : {kLowestFd, 3}) {
    UniqueFd moved(::fcntl(file.get(), F_DUPFD_CLOEXEC, lowest));
    if (moved) return moved;
  }
  throw_errno("cannot make shared memory for heartbeats");
}

// Replaces control characters by "?", because a rank can write anything into its slot.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

struct Wait {
  pid_t thread = 0;
  int64_t since_ns = 0;
  std::string where;
};

Wait load_wait(const heartbeat::Slot& slot) {
  Wait wait{
      slot.waiting_thread.load(std::memory_order_acquire), slot.waiting_since_ns.load(std::memory_order_acquire), {}};
  const size_t length = std::min<uint64_t>(slot.length.load(std::memory_order_acquire), heartbeat::kTextBytes);
  std::array<uint64_t, heartbeat::kTextBytes / 8> words{};
  for (size_t i = 0; i * 8 < length; ++i) words[i] = slot.text[i].load(std::memory_order_acquire);
  wait.where.assign(reinterpret_cast<const char*>(words.data()), length);
  return wait;
}

// Reads a wait as a reader of Note [Sequence lock]. If a rank died while it wrote, `sequence` stays odd, and the
// present contents are returned. If a living rank writes all the time, or was paused while it wrote, the text is
// "(changing)". That is enough, because such a rank does not hang.
Wait read_wait(const heartbeat::Slot& slot) {
  Wait wait;
  const uint32_t first = slot.sequence.load(std::memory_order_acquire);
  uint32_t before = first;
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    before = slot.sequence.load(std::memory_order_acquire);
    wait = load_wait(slot);
    if (before % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == before) return wait;
  }
  const pid_t owner = slot.owner;
  if (before != first || (owner > 0 && process_exists(owner))) wait.where = "(changing)";
  return wait;
}

}  // namespace

HeartbeatBoard::HeartbeatBoard(int slots) : fd_(make_memory_file()), slots_(slots) {
  const size_t bytes = heartbeat::board_bytes(static_cast<size_t>(slots));
  // All pages are allocated now, so that a rank does not die of a missing page when there is no memory left.
  if (const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes)); error != 0) errno = error;
  struct stat file {};
  const bool allocated = ::fstat(fd_.get(), &file) == 0 && file.st_size == static_cast<off_t>(bytes);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (!allocated || ::fcntl(fd_.get(), F_ADD_SEALS, seals) != 0)
    throw_errno("cannot make shared memory for heartbeats");
  board_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (board_ == MAP_FAILED) throw_errno("cannot map shared memory for heartbeats");
  new (board_)
      heartbeat::Header{heartbeat::kMagic, file.st_ino, static_cast<uint32_t>(slots), sizeof(heartbeat::Slot), 0, {}};
  for (int i = 0; i < slots; ++i) {
    auto* const slot = new (heartbeat::slot_at(board_, static_cast<size_t>(i))) heartbeat::Slot{};
    slot->index = static_cast<uint32_t>(i);
  }
}

HeartbeatBoard::~HeartbeatBoard() {
  ::munmap(board_, heartbeat::board_bytes(static_cast<size_t>(slots_)));
}

HeartbeatState HeartbeatBoard::read(int local_rank) const {
  ZS_ASSERT(local_rank >= 0 && local_rank < slots_, "no slot ", local_rank);
  const heartbeat::Slot& slot = *heartbeat::slot_at(board_, static_cast<size_t>(local_rank));
  HeartbeatState state;
  switch (slot.activity.load(std::memory_order_acquire)) {
    case heartbeat::Activity::kBeating:
      state.activity = HeartbeatState::Activity::kBeating;
      break;
    case heartbeat::Activity::kFinished:
      state.activity = HeartbeatState::Activity::kFinished;
      break;
    default:
      break;
  }
  state.owner = slot.owner;
  state.dumps = slot.dumps;
  state.step = slot.step;
  state.progress_ns = slot.progress_ns;
  state.meeting_since_ns = slot.meeting_since_ns;
  state.meeting_size = slot.meeting_size;
  Wait wait = read_wait(slot);
  state.waiting_thread = wait.thread;
  state.waiting_since_ns = wait.since_ns;
  if (wait.since_ns != 0) state.where = printable(std::move(wait.where));
  return state;
}

void HeartbeatBoard::tell(std::string_view news) {
  auto& header = *static_cast<heartbeat::Header*>(board_);
  if (header.news_bytes != 0) return;
  const size_t length = news.copy(header.news.data(), header.news.size());
  std::atomic_ref(header.news_bytes).store(static_cast<uint32_t>(length), std::memory_order_release);
}

bool HeartbeatBoard::any_step() const {
  for (int i = 0; i < slots_; ++i) {
    if (read(i).activity != HeartbeatState::Activity::kNone) return true;
  }
  return false;
}

}  // namespace zeroshard
