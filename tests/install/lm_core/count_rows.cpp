// Writes a file of tokens and says how many rows of 4 it has: count_rows FILE
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "zeroshard/config.h"
#include "zeroshard/data.h"
#include "zeroshard/token_file.h"
#include "zeroshard/version.h"

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  zeroshard::TokenFileWriter writer(argv[1], {.vocab_size = 100});
  for (int32_t document = 0; document < 5; ++document)
    writer.append(std::vector<int32_t>{document, 10 + document, 20 + document, 99});
  writer.finish();
  zeroshard::Dataset dataset({argv[1]}, {.length = 4, .packing = zeroshard::DatasetOptions::Packing::kSeparate});
  const zeroshard::ParsedConfig parsed = zeroshard::parse_config(R"({"train_micro_batch_size_per_gpu": 2})");
  std::printf("zeroshard %s: %lld tokens, %lld rows in batches of %lld\n", zeroshard::kVersion,
              static_cast<long long>(dataset.tokens()), static_cast<long long>(dataset.rows_in_epoch(0)),
              static_cast<long long>(parsed.config.micro_batch_size));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
