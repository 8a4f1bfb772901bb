#pragma once
#include <cstddef>
#include <cstdint>

// The interface of libzeroshard_parquet.so, the only library that links Arrow (lm/parquet_plugin). The interface is C.
// No exception and no type of Arrow or the standard library crosses it, so the library can be built with another
// compiler or standard library than zeroshard. Every change of this file needs a new kParquetPluginVersion.
namespace zeroshard {

inline constexpr const char* kParquetPluginFile = "libzeroshard_parquet.so";
inline constexpr const char* kParquetPluginSymbol = "zeroshard_parquet_plugin";
inline constexpr uint32_t kParquetPluginVersion = 1;

extern "C" {

// An open file. Only one thread at a time may use it.
struct ParquetRows;

// A column to read. If field_count is 0, it must be a column of strings. Otherwise it must be a column of lists of
// structs. The plugin then reads only the named fields of the structs, and the values of these fields must be strings.
struct ParquetColumn {
  const char* name;
  const char* const* fields;
  size_t field_count;
};

struct ParquetPlugin {
  uint32_t version;  // must stay the first member, so that every version of zeroshard can read it
  // Opens the file `fd` and takes ownership of `fd` in every case. Returns null if there is not enough memory. For
  // other failures, error() of the result has the reason.
  ParquetRows* (*open)(int fd);
  // Returns why open(), select() or next() failed, or null if none did. After a failed call, only error() and close()
  // may be called.
  const char* (*error)(const ParquetRows* rows);
  // Returns the name of column `index` of the file, or null after the last column.
  const char* (*column)(const ParquetRows* rows, size_t index);
  // Selects the columns. The caller calls it once, before next(). Returns 0, or -1 on failure.
  int (*select)(ParquetRows* rows, const ParquetColumn* columns, size_t count);
  // Sets `json` and `bytes` to the selected values of the next row, as a JSON object in UTF-8. They are valid until the
  // next call. Returns 1 for a row, 0 at the end, or -1 on failure.
  int (*next)(ParquetRows* rows, const char** json, size_t* bytes);
  void (*close)(ParquetRows* rows);
};

// The type of the only exported symbol.
using GetParquetPlugin = const ParquetPlugin* (*)();

}  // extern "C"

}  // namespace zeroshard
