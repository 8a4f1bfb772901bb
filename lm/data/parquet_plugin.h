#pragma once
#include <cstddef>
#include <cstdint>

// The interface of libzeroshard_parquet.so, the only library that links Arrow (lm/parquet_plugin). The interface is C:
// no exception and no type of Arrow or the standard library crosses it, so both sides may be compiled differently.
// Every change here needs a new kParquetPluginVersion.
namespace zeroshard {

inline constexpr const char* kParquetPluginFile = "libzeroshard_parquet.so";
inline constexpr const char* kParquetPluginSymbol = "zeroshard_parquet_plugin";
inline constexpr uint32_t kParquetPluginVersion = 1;

extern "C" {

// An open file. Used by one thread at a time.
struct ParquetRows;

// The selected part of a row. It is a column of strings or, if there are fields, a column of lists of structs with
// these fields, each a string.
struct ParquetColumn {
  const char* name;
  const char* const* fields;
  size_t field_count;
};

struct ParquetPlugin {
  uint32_t version;  // must stay the first member
  // Opens a file and takes ownership of `fd`. Returns null if there is no memory; error() reports other failures.
  ParquetRows* (*open)(int fd);
  // Returns the reason why a call failed; null if none did. After a failed call, only close() may be called.
  const char* (*error)(const ParquetRows* rows);
  // Returns the name of a column of the file; null after the last.
  const char* (*column)(const ParquetRows* rows, size_t index);
  // Selects the columns. The caller calls it once, before next(). Returns 0, or -1 on failure.
  int (*select)(ParquetRows* rows, const ParquetColumn* columns, size_t count);
  // Gets the selected values of the next row as a JSON object in UTF-8, which is valid until the next call. Returns 1,
  // 0 at the end, or -1 on failure.
  int (*next)(ParquetRows* rows, const char** json, size_t* bytes);
  void (*close)(ParquetRows* rows);
};

// The type of the only exported symbol.
using GetParquetPlugin = const ParquetPlugin* (*)();

}  // extern "C"

}  // namespace zeroshard
