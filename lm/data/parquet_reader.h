#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/document_reader.h"
#include "data/parquet_plugin.h"

namespace zeroshard {

// Decides by the file name.
bool is_parquet(const std::string& path);

// Throws ValueError if an input that is read as lines begins like a Parquet file.
void refuse_parquet(std::string_view beginning, const std::string& path);

// Loads the library that reads Parquet files, from next to the program or where the dynamic linker searches. It stays
// loaded. Throws ValueError naming `path`, which cannot be read without it.
const ParquetPlugin& load_parquet_plugin(const std::string& path);

// The rows of a Parquet file, as lines of JSON with the columns that the format needs.
class ParquetReader : public LineSource {
 public:
  // Throws IoError for a file that cannot be read, ValueError for one that lacks a column.
  ParquetReader(const ParquetPlugin& plugin, const std::string& path, const TokenizeOptions& options);

  bool next(std::string_view& line, int64_t max_bytes) override;

 private:
  void select(const TokenizeOptions& options);
  [[noreturn]] void fail() const;

  const ParquetPlugin& plugin_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<ParquetRows, void (*)(ParquetRows*)> rows_;
};

}  // namespace zeroshard
