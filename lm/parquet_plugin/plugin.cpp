#include <unistd.h>

#include <exception>
#include <new>
#include <optional>
#include <string>

#include "data/parquet_plugin.h"
#include "parquet_plugin/row_reader.h"

namespace zeroshard {

struct ParquetRows {
  std::optional<RowReader> reader;
  bool failed = false;
  std::string error;
};

namespace {

// Returns call(). If the call throws anything, keeps the error for error_of() and returns -1.
template <typename Call>
int guarded(ParquetRows& rows, const Call& call) noexcept {
  try {
    return call();
  } catch (const std::exception& error) {
    rows.failed = true;
    try {
      rows.error = error.what();
    } catch (...) {  // no memory for the text, so error_of() says "out of memory"
    }
  } catch (...) {
    rows.failed = true;
  }
  return -1;
}

ParquetRows* open_rows(int fd) {
  auto* const rows = new (std::nothrow) ParquetRows;
  if (rows == nullptr) {
    ::close(fd);
    return nullptr;
  }
  guarded(*rows, [&] {
    rows->reader.emplace(fd);
    return 0;
  });
  return rows;
}

const char* error_of(const ParquetRows* rows) {
  if (!rows->failed) return nullptr;
  return rows->error.empty() ? "out of memory" : rows->error.c_str();
}

const char* column_of(const ParquetRows* rows, size_t index) {
  return index < rows->reader->columns().size() ? rows->reader->columns()[index].c_str() : nullptr;
}

int select_columns(ParquetRows* rows, const ParquetColumn* columns, size_t count) {
  return guarded(*rows, [&] {
    rows->reader->select(columns, count);
    return 0;
  });
}

int next_row(ParquetRows* rows, const char** json, size_t* bytes) {
  return guarded(*rows, [&] {
    std::string_view row;
    if (!rows->reader->next(row)) return 0;
    *json = row.data();
    *bytes = row.size();
    return 1;
  });
}

void close_rows(ParquetRows* rows) {
  delete rows;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const ParquetPlugin* zeroshard_parquet_plugin() {
  static constexpr ParquetPlugin kPlugin{kParquetPluginVersion, open_rows, error_of,  column_of,
                                         select_columns,        next_row,  close_rows};
  return &kPlugin;
}

}  // namespace zeroshard
