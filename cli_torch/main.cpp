// `zeroshard-torch` runs one rank of those commands of `zeroshard` that need LibTorch: train and generate. `zeroshard`
// starts it as a separate program, so that the other commands of `zeroshard` need not wait until LibTorch's libraries
// are loaded.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "../cli/program.h"
#include "commands.h"

namespace {

// Makes malloc() keep freed memory in the process. A step frees its activations, and the next step allocates them
// again. By default glibc returns much of that memory to the system, and the system clears memory before it gives it to
// a process again. Clearing takes 6 % of a step of a small model. Does nothing if the environment already has one of
// the settings that it would change.
void keep_freed_memory() {
  constexpr int kMmapThreshold = 32 << 20;  // the greatest value that glibc accepts
  constexpr int kTrimThreshold = 1 << 30;   // this many bytes stay at the top of the heap
  constexpr int kTopPad = 64 << 20;
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"})
    if (std::getenv(name) != nullptr) return;
  ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  ::mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  ::mallopt(M_TOP_PAD, kTopPad);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app("one rank of zeroshard train, or generate", "zeroshard-torch");
  app.require_subcommand(1);
  for (const auto add : {zeroshard::cli::add_train_rank_command, zeroshard::cli::add_generate_rank_command}) add(app);
  return zeroshard::cli::run_program(app, argc, argv);
}
