#include "parquet_plugin/json_cells.h"

#include <arrow/type.h>
#include <arrow/util/utf8.h>

#include <stdexcept>
#include <utility>

namespace zeroshard {
namespace {

using arrow::Type;

// The cells of a column of nulls.
class JsonNulls : public JsonCells {
 public:
  void append(std::string& json, int64_t) const override { json += "null"; }
};

// The cells of a column of strings. Array is any type with GetView().
template <typename Array>
class JsonStrings : public JsonCells {
 public:
  explicit JsonStrings(std::shared_ptr<arrow::Array> array)
      : owner_(std::move(array)), array_(static_cast<const Array&>(*owner_)) {}

  void append(std::string& json, int64_t row) const override {
    if (array_.IsNull(row)) {
      json += "null";
      return;
    }
    const std::string_view text = array_.GetView(row);
    if (!arrow::util::ValidateUTF8(text)) throw std::runtime_error("a string is not UTF-8");
    append_json_string(json, text);
  }

 private:
  std::shared_ptr<arrow::Array> owner_;
  const Array& array_;
};

// The cells of a dictionary-encoded column of strings. The dictionary has each string once, and a row has the index of
// its string.
class JsonDictionary : public JsonCells {
 public:
  explicit JsonDictionary(std::shared_ptr<arrow::Array> array)
      : owner_(std::move(array)),
        array_(static_cast<const arrow::DictionaryArray&>(*owner_)),
        values_(make_json_cells(array_.dictionary(), {})) {}

  void append(std::string& json, int64_t row) const override {
    if (array_.IsNull(row)) {
      json += "null";
      return;
    }
    // Checks the index, because Arrow does not compare indices with the dictionary's size, and a damaged file can have
    // any index.
    const int64_t index = array_.GetValueIndex(row);
    if (index < 0 || index >= array_.dictionary()->length())
      throw std::runtime_error("a string is not in the column's dictionary");
    values_->append(json, index);
  }

 private:
  std::shared_ptr<arrow::Array> owner_;
  const arrow::DictionaryArray& array_;
  std::unique_ptr<JsonCells> values_;
};

class JsonStructs : public JsonCells {
 public:
  JsonStructs(std::shared_ptr<arrow::Array> array, const std::vector<std::string>& fields)
      : owner_(std::move(array)), array_(static_cast<const arrow::StructArray&>(*owner_)) {
    for (const std::string& name : fields) {
      std::string key = ",";
      append_json_string(key, name);
      key += ':';
      fields_.emplace_back(std::move(key), make_json_cells(array_.GetFieldByName(name), {}));
    }
  }

  void append(std::string& json, int64_t row) const override {
    if (array_.IsNull(row)) {
      json += "null";
      return;
    }
    const size_t begin = json.size();
    for (const auto& [key, cells] : fields_) {
      json += key;
      cells->append(json, row);
    }
    json[begin] = '{';
    json += '}';
  }

 private:
  std::shared_ptr<arrow::Array> owner_;
  const arrow::StructArray& array_;
  std::vector<std::pair<std::string, std::unique_ptr<JsonCells>>> fields_;
};

// The cells of a column of lists of structs. Array is any type with values(), value_offset() and value_length().
template <typename Array>
class JsonLists : public JsonCells {
 public:
  JsonLists(std::shared_ptr<arrow::Array> array, const std::vector<std::string>& fields)
      : owner_(std::move(array)),
        array_(static_cast<const Array&>(*owner_)),
        values_(std::make_unique<JsonStructs>(array_.values(), fields)) {}

  void append(std::string& json, int64_t row) const override {
    if (array_.IsNull(row)) {
      json += "null";
      return;
    }
    const int64_t begin = array_.value_offset(row), end = begin + array_.value_length(row);
    json += '[';
    for (int64_t i = begin; i < end; ++i) {
      if (i > begin) json += ',';
      values_->append(json, i);
    }
    json += ']';
  }

 private:
  std::shared_ptr<arrow::Array> owner_;
  const Array& array_;
  std::unique_ptr<JsonCells> values_;
};

}  // namespace

void append_json_string(std::string& json, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  json += '"';
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    json.append(text, begin, i - begin);
    begin = i + 1;
    json += '\\';
    if (c >= 0x20) {
      json += text[i];
    } else if (c == '\n') {
      json += 'n';
    } else {
      json += "u00";
      json += kDigits[c >> 4];
      json += kDigits[c & 15];
    }
  }
  json.append(text, begin);
  json += '"';
}

bool holds_strings(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::NA:
    case Type::STRING:
    case Type::BINARY:  // some programs write text without marking it as text
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return true;
    case Type::DICTIONARY:
      return holds_strings(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

bool holds_lists(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::NA:
      return true;
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
      return type.field(0)->type()->id() == Type::STRUCT;
    default:
      return false;
  }
}

std::unique_ptr<JsonCells> make_json_cells(std::shared_ptr<arrow::Array> array,
                                           const std::vector<std::string>& fields) {
  // Checks the type of the array, because the casts in the classes above rely on the type, and the schema of a damaged
  // file can contradict its pages.
  const arrow::DataType* const type = array == nullptr ? nullptr : array->type().get();
  if (type == nullptr || !(fields.empty() ? holds_strings(*type) : holds_lists(*type)))
    throw std::runtime_error("a column has another type than the file says");
  switch (type->id()) {
    case Type::STRING:
    case Type::BINARY:
      return std::make_unique<JsonStrings<arrow::BinaryArray>>(std::move(array));
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return std::make_unique<JsonStrings<arrow::LargeBinaryArray>>(std::move(array));
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return std::make_unique<JsonStrings<arrow::BinaryViewArray>>(std::move(array));
    case Type::DICTIONARY:
      return std::make_unique<JsonDictionary>(std::move(array));
    case Type::LIST:
      return std::make_unique<JsonLists<arrow::ListArray>>(std::move(array), fields);
    case Type::LARGE_LIST:
      return std::make_unique<JsonLists<arrow::LargeListArray>>(std::move(array), fields);
    case Type::FIXED_SIZE_LIST:
      return std::make_unique<JsonLists<arrow::FixedSizeListArray>>(std::move(array), fields);
    default:
      return std::make_unique<JsonNulls>();
  }
}

}  // namespace zeroshard
