#pragma once
#include <arrow/array.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Appends a string of JSON. `text` is UTF-8.
void append_json_string(std::string& json, std::string_view text);

// The types that JsonStrings and JsonLists accept. A column of only nulls has no other type: it may be either.
bool holds_strings(const arrow::DataType& type);
bool holds_lists(const arrow::DataType& type);

// The values of a column in a batch, as JSON.
class JsonCells {
 public:
  virtual ~JsonCells() = default;
  // Throws std::runtime_error.
  virtual void append(std::string& json, int64_t row) const = 0;
};

// For lists of structs, only `fields` are returned; for strings, `fields` is empty.
std::unique_ptr<JsonCells> make_json_cells(std::shared_ptr<arrow::Array> array, const std::vector<std::string>& fields);

}  // namespace zeroshard
