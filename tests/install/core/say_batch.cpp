// Says how large the micro-batches of a configuration are.
#include <cstdio>
#include <exception>

#include "zeroshard/config.h"
#include "zeroshard/version.h"

int main() try {
  const zeroshard::ParsedConfig parsed = zeroshard::parse_config(R"({"train_micro_batch_size_per_gpu": 2})");
  std::printf("zeroshard %s: micro-batches of %lld\n", zeroshard::kVersion,
              static_cast<long long>(parsed.config.micro_batch_size));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
