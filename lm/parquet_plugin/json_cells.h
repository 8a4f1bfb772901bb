#pragma once
#include <arrow/array.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Appends `text`, which is UTF-8, as a JSON string.
void append_json_string(std::string& json, std::string_view text);

// holds_strings() returns whether JsonStrings accepts the type, and holds_lists() whether JsonLists does. Both accept
// the null type, because a column of only nulls has that type.
bool holds_strings(const arrow::DataType& type);
bool holds_lists(const arrow::DataType& type);

// The values of a column in a batch, as JSON.
class JsonCells {
 public:
  virtual ~JsonCells() = default;
  // Appends the value of a row to `json`. Throws std::runtime_error.
  virtual void append(std::string& json, int64_t row) const = 0;
};

// Makes the cells of an array. For an array of lists of structs, the JSON has only `fields` of each struct. For an
// array of strings, `fields` must be empty.
std::unique_ptr<JsonCells> make_json_cells(std::shared_ptr<arrow::Array> array, const std::vector<std::string>& fields);

}  // namespace zeroshard
