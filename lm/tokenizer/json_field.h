#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"

namespace zeroshard {

// Returns the deepest nesting of brackets outside of strings. `text` need not be JSON. A caller uses it to refuse text
// that is nested too deeply. The JSON library would parse such text, but it copies and writes values recursively, so
// the stack would overflow and the process would end.
int json_depth(std::string_view text);

// Parses JSON. Throws a ValueError that names `name` for text that is not JSON or is nested too deeply.
nlohmann::json parse_json(std::string_view text, const std::string& name);

// A value of a JSON file. `place`, the file's name and the value's path, is for errors. The object refers to the value
// and does not own it.
class JsonField {
 public:
  using Json = nlohmann::json;

  JsonField(const Json& value, std::string place) : value_(value), place_(std::move(place)) {}

  const Json& json() const { return value_; }
  bool is_null() const { return value_.is_null(); }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key) && !value_[key].is_null(); }
  JsonField operator[](const char* key) const {
    ZS_CHECK(value_.is_object(), place_, " must be an object, not ", shown());
    ZS_CHECK(value_.contains(key), place_, " lacks '", key, "'");
    return {value_[key], concat(place_, ".", key)};
  }
  // Returns the member `key`, or null if there is none.
  JsonField optional(const char* key) const {
    static const Json kNull;
    ZS_CHECK(value_.is_object(), place_, " must be an object, not ", shown());
    return {has(key) ? value_[key] : kNull, concat(place_, ".", key)};
  }
  JsonField member(const std::string& key, const Json& value) const { return {value, concat(place_, ".", key)}; }
  JsonField element(size_t index) const { return {value_.at(index), concat(place_, "[", index, "]")}; }

  template <typename Visit>
  void each(const Visit& visit) const {
    ZS_CHECK(value_.is_array(), place_, " must be an array, not ", shown());
    for (size_t i = 0; i < value_.size(); ++i) visit(element(i));
  }

  const std::string& string() const {
    ZS_CHECK(value_.is_string(), place_, " must be a string, not ", shown());
    return value_.get_ref<const std::string&>();
  }
  std::string type() const { return (*this)["type"].string(); }
  bool boolean() const {
    ZS_CHECK(value_.is_boolean(), place_, " must be true or false, not ", shown());
    return value_.get<bool>();
  }
  bool boolean_or(const char* key, bool otherwise) const { return has(key) ? (*this)[key].boolean() : otherwise; }
  static bool is_integer(const Json& value, int64_t least, int64_t most) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(most)) &&
           value.get<int64_t>() >= least && value.get<int64_t>() <= most;
  }
  int64_t integer(int64_t least, int64_t most) const {
    ZS_CHECK(is_integer(value_, least, most), place_, " must be an integer from ", least, " to ", most, ", not ",
             shown());
    return value_.get<int64_t>();
  }

  // Throws ValueError if the object has a key that is not in `keys`, so that no key is ignored by mistake.
  void allow_only(std::initializer_list<std::string_view> keys) const {
    ZS_CHECK(value_.is_object(), place_, " must be an object, not ", shown());
    for (const auto& [key, value] : value_.items())
      ZS_CHECK(std::find(keys.begin(), keys.end(), key) != keys.end(), place_, ".", key, " = ",
               member(key, value).shown(), " is not supported");
  }
  [[noreturn]] void refuse(std::string_view allowed) const {
    throw ValueError(concat(place_, " = ", shown(), " is not supported: ", allowed));
  }

  std::string shown() const {
    constexpr size_t kMost = 120;
    std::string text = value_.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
    return text;
  }

 private:
  const Json& value_;
  std::string place_;
};

}  // namespace zeroshard
