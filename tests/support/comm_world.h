#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/local_comm.h"
#include "comm/shm_comm.h"

// Worlds of many ranks for tests.
namespace zeroshard::testing {

// Runs body(rank) in one thread per rank; what each threw ("" when nothing).
inline std::vector<std::string> run_threads(int world_size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_local_world(int world_size, const std::function<void(Comm&)>& body,
                                                const CommOptions& options = {}) {
  auto world = make_local_world(world_size, options);
  return run_threads(world_size, [&](int rank) {
    const std::unique_ptr<Comm> comm = std::move(world[static_cast<size_t>(rank)]);
    body(*comm);
  });
}

// Shared-memory ranks in threads: under ThreadSanitizer, which does not follow fork().
inline std::vector<std::string> run_shm_threads(int world_size, const std::function<void(Comm&)>& body,
                                                const CommOptions& options = {}) {
  auto bootstraps = make_thread_bootstraps(world_size);
  return run_threads(world_size, [&](int rank) {
    ShmComm comm(*bootstraps[static_cast<size_t>(rank)], options);
    body(comm);
  });
}

// One fork()ed process per rank. error: what its body threw; status: of waitpid.
class ForkedWorld {
 public:
  ForkedWorld(int world_size, const std::function<void(int, Bootstrap&)>& body) {
    auto bootstraps = make_fork_bootstraps(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      int ends[2];
      if (::pipe(ends) != 0) std::abort();
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::close(ends[0]);
        ::_exit(run(rank, *bootstraps[static_cast<size_t>(rank)], body, ends[1]));
      }
      ::close(ends[1]);
      ranks_.push_back({pid, ends[0]});
    }
  }
  ForkedWorld(const ForkedWorld&) = delete;
  ForkedWorld& operator=(const ForkedWorld&) = delete;
  ~ForkedWorld() {
    for (Rank& rank : ranks_)
      if (rank.pid > 0) {
        ::kill(rank.pid, SIGKILL);
        ::waitpid(rank.pid, nullptr, 0);
      }
  }

  pid_t pid(int rank) const { return ranks_[static_cast<size_t>(rank)].pid; }

  // Waits for the end of `rank`; what it threw, "" when nothing, "signal 9" when it was killed.
  std::string join(int rank) {
    Rank& ended = ranks_[static_cast<size_t>(rank)];
    std::string error;
    char buffer[4096];
    ssize_t size;
    while ((size = ::read(ended.read_end, buffer, sizeof buffer)) > 0) error.append(buffer, static_cast<size_t>(size));
    ::close(ended.read_end);
    int status = 0;
    ::waitpid(ended.pid, &status, 0);
    ended.pid = -1;
    if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
    if (WEXITSTATUS(status) != 0 && error.empty()) return "exit " + std::to_string(WEXITSTATUS(status));
    return error;
  }
  std::vector<std::string> join_all() {
    std::vector<std::string> errors;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) errors.push_back(join(static_cast<int>(rank)));
    return errors;
  }

 private:
  struct Rank {
    pid_t pid;
    int read_end;
  };

  static int run(int rank, Bootstrap& bootstrap, const std::function<void(int, Bootstrap&)>& body, int write_end) {
    try {
      body(rank, bootstrap);
      return 0;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      [[maybe_unused]] const ssize_t written = ::write(write_end, text.data(), text.size());
      return 1;
    }
  }

  std::vector<Rank> ranks_;
};

inline std::vector<std::string> run_shm_processes(int world_size, const std::function<void(Comm&)>& body,
                                                  const CommOptions& options = {}) {
  ForkedWorld world(world_size, [&](int, Bootstrap& bootstrap) {
    ShmComm comm(bootstrap, options);
    body(comm);
  });
  return world.join_all();
}

}  // namespace zeroshard::testing
