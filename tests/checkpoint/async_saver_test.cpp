#include "checkpoint/async_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "comm/local_comm.h"
#include "file/support.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::TemporaryDirectory;

SaveRequest request_of(const std::string& root, std::vector<float>& values) {
  SaveRequest request;
  request.root = root;
  request.tag = std::string("a");
  const auto numel = int64_t(values.size());
  request.slices.push_back({.name = "x",
                            .kind = "weight",
                            .dtype = "F32",
                            .aliases = {},
                            .shape = {numel},
                            .elements = {0, numel},
                            .data = values.data()});
  return request;
}

void copy(void* to, const void* from, int64_t bytes, bool) {
  std::memcpy(to, from, size_t(bytes));
}

// The thread is not in the child, and the memory is not the child's to wait for.
TEST(AsyncSaver, AForkedChildLeavesItAlone) {
  const TemporaryDirectory root;
  const auto comm = make_single_comm();
  Ledger ledger;
  auto saver = std::make_unique<AsyncSaver>(*comm, posix_io(), ledger);
  std::vector<float> values(1000, 1);
  saver->start(request_of(root.path(), values), copy);
  saver->wait();
  saver->start(request_of(root.path(), values), copy);  // under way, or not, when the child begins
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);
    saver.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  saver->wait();
  EXPECT_EQ(testing::contents_of(root / "latest"), "a");
}

}  // namespace
}  // namespace zeroshard
