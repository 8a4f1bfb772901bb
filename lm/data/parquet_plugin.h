#pragma once
#include <cstddef>
#include <cstdint>

// What zeroshard calls of libzeroshard_parquet.so, which alone links Arrow (lm/parquet_plugin). It is C: no exception,
// no type of Arrow or of the standard library passes it, so that either side may be compiled otherwise. A change of
// anything here needs another kParquetPluginVersion.
namespace zeroshard {

inline constexpr const char* kParquetPluginFile = "libzeroshard_parquet.so";
inline constexpr const char* kParquetPluginSymbol = "zeroshard_parquet_plugin";
inline constexpr uint32_t kParquetPluginVersion = 1;

extern "C" {

// A file that is being read. One thread at a time.
struct ParquetRows;

// What is wanted of a row: a column of strings or, where there are fields, one of lists of structs with these fields,
// each of strings.
struct ParquetColumn {
  const char* name;
  const char* const* fields;
  size_t field_count;
};

struct ParquetPlugin {
  uint32_t version;  // first for ever
  // Closes `fd` in the end. Null when there is no memory; whether it failed otherwise, error() tells.
  ParquetRows* (*open)(int fd);
  // Why a call failed, or null. Nothing but close() may be called after one that did.
  const char* (*error)(const ParquetRows* rows);
  // Name of a column of the file, null behind the last.
  const char* (*column)(const ParquetRows* rows, size_t index);
  // To be called once, before next(). 0, or -1 for failure.
  int (*select)(ParquetRows* rows, const ParquetColumn* columns, size_t count);
  // The next row, as a JSON object in UTF-8 of what was selected, valid until the next call: 1; 0 at the end; -1 for
  // failure.
  int (*next)(ParquetRows* rows, const char** json, size_t* bytes);
  void (*close)(ParquetRows* rows);
};

// Of this type is the one symbol.
using GetParquetPlugin = const ParquetPlugin* (*)();

}  // extern "C"

}  // namespace zeroshard
