#pragma once
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "file/support.h"
#include "support/around_io.h"
#include "support/random.h"
#include "zeroshard/data.h"
#include "zeroshard/token_file.h"

namespace zeroshard::testing {

struct Document {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;  // as long as ids
};

inline void write_tokens(Io& io, const std::string& path, const std::vector<Document>& documents,
                         const TokenFileOptions& options) {
  TokenFileWriter writer(io, path, options);
  for (const Document& document : documents)
    writer.append(document.ids, options.masked ? std::span(document.learn) : std::span<const uint8_t>());
  writer.finish();
}

// Not durable, so that hundreds of files take no time.
inline void write_tokens(const std::string& path, const std::vector<Document>& documents,
                         const TokenFileOptions& options) {
  AroundIo io(posix_io(), [](IoOp op, const auto& call) -> decltype(call()) { return op == IoOp::kSync ? 0 : call(); });
  write_tokens(io, path, documents, options);
}

inline std::vector<Document> random_documents(Random& random, int64_t count, int64_t max_tokens, int64_t vocab_size) {
  std::vector<Document> documents{size_t(count)};
  for (Document& document : documents) {
    for (auto i = int64_t(1 + random() % uint64_t(max_tokens)); i > 0; --i) {
      document.ids.push_back(int32_t(random() % uint64_t(vocab_size)));
      document.learn.push_back(random() % 3 != 0);
    }
  }
  return documents;
}

template <typename Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

}  // namespace zeroshard::testing
