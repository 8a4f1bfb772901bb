#include "launch/stack_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>

#include "launch/heartbeat_layout.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

struct Printed {
  int code;
  std::string err;
};

// A child's exit code and what it wrote to stderr: the handler stays in a process for ever.
Printed printed_by_child(const std::function<int()>& body) {
  ::testing::internal::CaptureStderr();
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ::testing::internal::GetCapturedStderr()};
}

volatile sig_atomic_t calls = 0;
struct sigaction below;

void count_call(int) {
  calls = calls + 1;
}

// As Python's faulthandler does with chain=True: calls what was there before, which is then a handler that it replaced.
void chain(int signal) {
  struct sigaction mine {};
  ::sigaction(signal, &below, &mine);
  ::raise(signal);
  ::sigaction(signal, &mine, nullptr);
  calls = calls + 1;
}

void set_handler(void (*handler)(int), struct sigaction* old) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_NODEFER;
  ::sigaction(stack_dump_signal(), &action, old);
}

TEST(StackDump, PrintsTheStackAndCounts) {
  const Printed printed = printed_by_child([] {
    const auto slot = std::make_shared<heartbeat::Slot>();
    install_stack_dump(slot);
    errno = 77;
    ::raise(stack_dump_signal());
    return errno == 77 && slot->dumps == 1 ? 0 : 1;
  });
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.err, ::testing::StartsWith("zeroshard: native stack of thread "));
  EXPECT_THAT(printed.err, HasSubstr("test_launch"));
  EXPECT_GE(std::count(printed.err.begin(), printed.err.end(), '\n'), 5);
}

TEST(StackDump, CallsTheHandlerThatWasThere) {
  const Printed printed = printed_by_child([] {
    set_handler(count_call, nullptr);
    const auto slot = std::make_shared<heartbeat::Slot>();
    install_stack_dump(slot);
    install_stack_dump(slot);  // once is enough, and no handler calls itself
    ::raise(stack_dump_signal());
    return calls == 1 && slot->dumps == 1 ? 0 : 1;
  });
  EXPECT_EQ(printed.code, 0);
}

TEST(StackDump, IsCalledByAHandlerThatCameLater) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer puts a handler of its own between, which does not bear sigaction inside a handler";
#endif
  const Printed printed = printed_by_child([] {
    const auto slot = std::make_shared<heartbeat::Slot>();
    install_stack_dump(slot);
    set_handler(chain, &below);
    for (int i = 0; i < 2; ++i) ::raise(stack_dump_signal());
    return calls == 2 && slot->dumps == 2 ? 0 : 1;
  });
  EXPECT_EQ(printed.code, 0);
}

// A forked child has the handler and the memory, but is not the rank.
TEST(StackDump, AChildDoesNotCount) {
  const Printed printed = printed_by_child([] {
    const auto slot = std::make_shared<heartbeat::Slot>();
    install_stack_dump(slot);
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(stack_dump_signal());
      ::_exit(static_cast<int>(slot->dumps));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  });
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.err, HasSubstr("native stack"));
}

}  // namespace
}  // namespace zeroshard
