// Times ShmComm among fork()ed ranks, on command. Reads lines "OPERATION BYTES ITERATIONS" from stdin and answers each
// with one JSON line: the seconds of each iteration on the slowest rank. BYTES is the size of the full buffer of each
// rank, fp32. bench/collectives.py interleaves it with other libraries.
//   all_gather  every rank's shard into every rank's full buffer
//   reduce      exchange, sum of this rank's slice in rank order, release, drain
//   copy        ceiling: memcpy of what a rank copies in all_gather, on all ranks at once, from its own memory
//   sum         ceiling: the sum of reduce, on all ranks at once, from its own memory
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "comm/shm_comm.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

enum Operation : int64_t { kEnd, kGather, kReduce, kCopy, kSum, kOperations };
constexpr const char* kNames[] = {"end", "all_gather", "reduce", "copy", "sum"};

struct Command {
  int64_t operation = kEnd, bytes = 0, iterations = 0;
};

// Rank 0 reads it; a maximum over ranks spreads it.
Command next_command(Comm& comm) {
  Command command;
  std::string name;
  if (comm.rank() == 0 && std::cin >> name >> command.bytes >> command.iterations)
    for (int64_t i = kGather; i < kOperations; ++i)
      if (name == kNames[i]) command.operation = i;
  comm.all_reduce({&command, 3, DType::kOther8}, ReduceOp::kMax, "command")->wait();
  return command;
}

class Bench {
 public:
  Bench(Comm& comm, int64_t bytes)
      : comm_(comm),
        numel_(bytes / 4 / comm.world_size() * comm.world_size()),
        shard_numel_(numel_ / comm.world_size()),
        full_(comm.allocate(numel_ * 4, "full")),
        other_(comm.allocate(numel_ * 4, "other")) {
    std::memset(full_->data(), 1, static_cast<size_t>(numel_ * 4));
    std::memset(other_->data(), 1, static_cast<size_t>(numel_ * 4));
  }

  double run(int64_t operation) {
    comm_.barrier("start");
    const auto start = std::chrono::steady_clock::now();
    if (operation == kGather)
      comm_.all_gather(span(full_), {slice(other_, comm_.rank()), shard_numel_, kType}, "g")->wait();
    if (operation == kReduce) reduce();
    if (operation == kCopy) copy();
    if (operation == kSum) sum();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    comm_.all_reduce({&seconds, 1, DType::kFloat64}, ReduceOp::kMax, "seconds")->wait();
    return seconds;
  }

 private:
  static constexpr DType kType = DType::kFloat32;

  Span span(const std::unique_ptr<Allocation>& memory) const { return {memory->data(), numel_, kType}; }
  float* slice(const std::unique_ptr<Allocation>& memory, int rank) const {
    return static_cast<float*>(memory->data()) + rank * shard_numel_;
  }
  void reduce() {
    const auto exchange = comm_.exchange(span(full_), {}, "r");
    exchange->wait();
    kernels::sum_in_order(exchange->pieces(), kType, 1.0f, slice(other_, comm_.rank()), kType, false, shard_numel_);
    exchange->release();
    exchange->drain();
  }
  void copy() {
    // As all_gather: the own shard too, because here it is not part of the full buffer.
    for (int rank = 0; rank < comm_.world_size(); ++rank)
      std::memcpy(slice(full_, rank), slice(other_, rank), static_cast<size_t>(shard_numel_ * 4));
  }
  void sum() {
    std::vector<const void*> pieces;
    for (int rank = 0; rank < comm_.world_size(); ++rank) pieces.push_back(slice(full_, rank));
    kernels::sum_in_order(pieces, kType, 1.0f, slice(other_, comm_.rank()), kType, false, shard_numel_);
  }

  Comm& comm_;
  int64_t numel_, shard_numel_;
  std::unique_ptr<Allocation> full_, other_;
};

void serve(Bootstrap& bootstrap) {
  ShmComm comm(bootstrap);
  while (true) {
    const Command command = next_command(comm);
    if (command.operation == kEnd) return;
    Bench bench(comm, command.bytes);
    bench.run(command.operation);  // warms up
    std::string line =
        concat("{\"operation\": \"", kNames[command.operation], "\", \"bytes\": ", command.bytes, ", \"seconds\": [");
    for (int64_t i = 0; i < command.iterations; ++i) line += concat(i == 0 ? "" : ", ", bench.run(command.operation));
    if (comm.rank() == 0) std::cout << line << "]}" << std::endl;
  }
}

// One core for each rank. The system may leave two that wake each other on one core for tens of milliseconds: longer
// than all iterations of a size.
void pin(int rank) {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || rank >= CPU_COUNT(&allowed)) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && seen++ == rank) CPU_SET(core, &own);
  ::sched_setaffinity(0, sizeof own, &own);
}

}  // namespace
}  // namespace zeroshard

int main(int argc, char** argv) {
  const int world_size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (world_size < 1 || argc > 2) {
    std::fprintf(stderr, "usage: bench_collectives [WORLD_SIZE]   (commands on stdin: OPERATION BYTES ITERATIONS)\n");
    return 2;
  }
  const auto bootstraps = zeroshard::make_fork_bootstraps(world_size);
  int rank = 0;
  std::vector<pid_t> children;
  for (int child = 1; child < world_size && rank == 0; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) rank = child;
    children.push_back(pid);
  }
  zeroshard::pin(rank);
  try {
    zeroshard::serve(*bootstraps[static_cast<size_t>(rank)]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
  if (rank != 0) return 0;
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed += status != 0;
  }
  return failed == 0 ? 0 : 1;
}
