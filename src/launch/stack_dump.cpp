#include "launch/stack_dump.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "launch/heartbeat_layout.h"

namespace zeroshard {
namespace {

constexpr int kMaxFrames = 64;

// The data of the signal handler, which gets no arguments of its own. The data is set once and never freed, because the
// handler can run until the process is gone.
struct Target {
  std::shared_ptr<heartbeat::Slot> slot;
  struct sigaction previous {};
  pid_t pid = 0;
};
std::atomic<const Target*> target{nullptr};

// Set in a thread while the handler runs there. If the handler is called again meanwhile, it does nothing. Otherwise
// calls could form a cycle in a process that a rank has forked and that is a rank itself. There, the handler calls the
// previous handler. That handler may call the one that it replaced, which is this handler, inherited from the parent.
// The model "initial-exec" makes the variable exist from the start of a thread, because a signal handler must not
// allocate.
[[gnu::tls_model("initial-exec")]] thread_local volatile sig_atomic_t inside = 0;

void append(std::array<char, 160>& line, size_t& size, std::string_view text) {
  const size_t count = std::min(text.size(), line.size() - size);
  std::memcpy(line.data() + size, text.data(), count);
  size += count;
}

void append(std::array<char, 160>& line, size_t& size, long number) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  append(line, size, std::string_view(digits.data(), static_cast<size_t>(end - digits.data())));
}

// Makes only calls that are allowed in a signal handler. backtrace() is allowed because install_stack_dump() has called
// it before, so that it does not load libgcc now.
void print_stack() {
  std::array<char, 160> line;
  std::array<char, 16> name{};
  size_t size = 0;
  ::prctl(PR_GET_NAME, name.data());
  append(line, size, "zeroshard: native stack of thread ");
  append(line, size, ::syscall(SYS_gettid));
  append(line, size, " (");
  append(line, size, name.data());
  append(line, size, "):\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), size);
  std::array<void*, kMaxFrames> frames;
  const int count = ::backtrace(frames.data(), kMaxFrames);
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
}

void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    if (action.sa_sigaction != nullptr) action.sa_sigaction(signal, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(signal);
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  if (inside != 0) return;
  inside = 1;
  const int error = errno;
  print_stack();
  if (const Target* to = target.load(); to != nullptr) {
    call(to->previous, signal, info, context);
    if (::getpid() == to->pid) to->slot->dumps.fetch_add(1);
  }
  errno = error;
  inside = 0;
}

}  // namespace

int stack_dump_signal() {
  return SIGRTMIN + 9;
}

void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot) {
  const Target* old = target.load();
  // A target with another pid belongs to the process that forked this one.
  if (old != nullptr && old->pid == ::getpid()) return;
  std::array<void*, 1> frame;
  ::backtrace(frame.data(), 1);  // loads libgcc now, because that needs malloc()
  auto mine = std::make_unique<Target>(Target{slot, {}, ::getpid()});
  ::sigaction(stack_dump_signal(), nullptr, &mine->previous);
  const bool installed = (mine->previous.sa_flags & SA_SIGINFO) != 0 && mine->previous.sa_sigaction == handle;
  if (installed && old != nullptr) mine->previous = old->previous;
  if (!target.compare_exchange_strong(old, mine.get())) return;  // another thread was faster
  mine.release();
  if (installed) return;
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  ::sigaction(stack_dump_signal(), &action, nullptr);
}

}  // namespace zeroshard
