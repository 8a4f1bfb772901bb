#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/document_reader.h"
#include "data/parquet_plugin.h"

namespace zeroshard {

// Returns whether the name of a file ends in .parquet.
bool is_parquet(const std::string& path);

// Throws ValueError if `beginning`, the first bytes of the input `path`, are those of a Parquet file. LineReader calls
// it, because it cannot read Parquet files.
void refuse_parquet(std::string_view beginning, const std::string& path);

// Loads the library that reads Parquet files. Looks for it in the directory of the program, or else where the dynamic
// linker searches. The library stays loaded. Throws a ValueError that names `path`, the file to read, if the library is
// missing, cannot be loaded, or belongs to another version of zeroshard.
const ParquetPlugin& load_parquet_plugin(const std::string& path);

// Reads the rows of a Parquet file. Each row is a line of JSON without a newline, with only the columns that `format`
// and `field` of the options ask for. bytes() returns the size of the whole file, even before the first row is read.
class ParquetReader : public LineSource {
 public:
  // Throws IoError for a file that cannot be read, and Error if the options' `stop` is set. Throws ValueError for a
  // pipe or device, and for a file in which a wanted column is missing or has a type that the plugin cannot read.
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
