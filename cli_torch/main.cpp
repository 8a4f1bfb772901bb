// `zeroshard-torch`: the commands of `zeroshard` that need LibTorch, as one rank. `zeroshard` starts it, so that its
// other commands need not wait for LibTorch's libraries to be loaded.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "../cli/program.h"
#include "commands.h"

namespace {

// Activations of a step are freed, and allocated again in the next step. By default glibc returns much of that memory
// to the system, which must clear it each time: 6 % of a step of a small model. Settings in the environment are kept.
void keep_freed_memory() {
  constexpr int kMmapThreshold = 32 << 20;  // the greatest that glibc takes
  constexpr int kTrimThreshold = 1 << 30;   // this much stays at the top of the heap
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
