#pragma once
#include <arrow/record_batch.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet_plugin.h"
#include "parquet_plugin/json_cells.h"

namespace zeroshard {

// Reads the rows of a Parquet file in order, with a few megabytes in memory at a time. Throws Arrow's exceptions, or
// std::runtime_error.
class RowReader {
 public:
  // Takes ownership of `fd`, even if the constructor throws.
  explicit RowReader(int fd);

  const std::vector<std::string>& columns() const { return columns_; }
  // Selects the columns whose values next() returns. Must be called once, before next(). Throws std::runtime_error for
  // a column or field that is missing or has another type.
  void select(const ParquetColumn* columns, size_t count);
  // Sets `json` to the next row as a JSON object. The text is valid until the next call. Returns false at the end.
  bool next(std::string_view& json);

 private:
  struct Wanted {
    std::string name;
    std::vector<std::string> fields;
    std::unique_ptr<JsonCells> cells;  // cells of batch_
  };

  void select_leaves(const parquet::arrow::SchemaField& column, const Wanted& wanted);
  bool next_row_group();
  bool next_batch();

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<std::string> columns_;
  std::vector<Wanted> wanted_;
  std::vector<int> leaves_;                            // leaf columns to read: their indices in a row group
  int row_group_ = 0;                                  // index of the next row group
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // batches of row group row_group_ - 1
  int64_t left_ = 0;                                   // rows of row group row_group_ - 1 that are in no batch yet
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t row_ = 0;  // index of the next row of batch_
  std::string json_;
};

}  // namespace zeroshard
