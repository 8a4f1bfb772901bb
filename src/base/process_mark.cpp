#include "base/process_mark.h"

#include <pthread.h>
#include <unistd.h>

#include "base/format.h"

namespace zeroshard {

// The count begins when the library is loaded, so that a fork during the construction of the first ProcessMark is
// counted, too.
uint32_t ProcessMark::forks_before_this_process = [] {
  ::pthread_atfork(nullptr, nullptr, [] { ++forks_before_this_process; });
  return 0U;
}();

ProcessMark::ProcessMark() : forks_(forks_before_this_process), pid_(::getpid()) {}

std::string ProcessMark::refusal(int rank, std::string_view what) const {
  return concat("process ", ::getpid(), " is a fork of rank ", rank, " (process ", pid_, "), whose ", what,
                " this is: a forked child must not use it, or it would take the rank's place among the others. Let the "
                "rank itself call, or start the child without fork() (multiprocessing's \"spawn\")");
}

}  // namespace zeroshard
