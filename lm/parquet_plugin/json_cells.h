#pragma once
#include <arrow/array.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Appends `text`, which is UTF-8, to `json` as a JSON string.
void append_json_string(std::string& json, std::string_view text);

// holds_strings() returns whether a column of the type can be read as strings, and holds_lists() whether it can be read
// as lists of structs. Both accept the null type, because a column of only nulls has that type.
bool holds_strings(const arrow::DataType& type);
bool holds_lists(const arrow::DataType& type);

// The values of a column in a batch, as JSON.
class JsonCells {
 public:
  virtual ~JsonCells() = default;
  // Appends the value of a row to `json`, as a string, a list of objects, or null. Throws std::runtime_error for
  // damaged data, such as a string that is not UTF-8.
  virtual void append(std::string& json, int64_t row) const = 0;
};

// Makes the cells of an array. If `fields` is empty, holds_strings() must be true of the array's type. Otherwise
// holds_lists() must be true of it, and the JSON has only these fields of each struct. Throws std::runtime_error for
// any other array, and for a null pointer.
std::unique_ptr<JsonCells> make_json_cells(std::shared_ptr<arrow::Array> array, const std::vector<std::string>& fields);

}  // namespace zeroshard
