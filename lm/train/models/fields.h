#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

inline constexpr int64_t kMostSize = int64_t{1} << 28, kMostLayers = int64_t{1} << 14;

// Reads the fields of a config.json. The object remembers which fields were read, so that finish() can refuse fields
// that nobody has read. A field with the value null counts as not given. If a field is not given, the functions with a
// `fallback` return it, or throw if it is unset. Every error is a ValueError that names the file, the field and its
// value.
class Fields {
 public:
  // `object` must be a JSON object. `path` precedes the names of fields in errors.
  Fields(nlohmann::json object, std::string source, std::string path = "");

  bool has(std::string_view name) const;
  bool written(std::string_view name) const;                                     // true also for the value null
  int64_t integer(std::string_view name, std::optional<int64_t> fallback = {});  // at least 0
  int64_t positive(std::string_view name, std::optional<int64_t> fallback = {});
  // Returns a dimension or the number of layers, from 1 to `most`. Real models stay below kMostSize, and the product of
  // two numbers up to kMostSize does not overflow.
  int64_t size(std::string_view name, std::optional<int64_t> fallback = {}, int64_t most = kMostSize);
  double number(std::string_view name, std::optional<double> fallback = {});
  double probability(std::string_view name, double fallback);  // in [0, 1)
  bool boolean(std::string_view name, bool fallback);
  std::string text(std::string_view name, std::optional<std::string> fallback = {});
  std::string path(std::string_view name, std::optional<std::string> fallback = {});  // path of a file or folder
  std::vector<std::string> paths(std::string_view name);                              // empty: not given
  std::vector<std::string> texts(std::string_view name);                              // empty: not given
  std::vector<std::string> text_or_texts(std::string_view name);                      // a string becomes a list of one
  std::optional<Fields> object(std::string_view name);

  // Throws if the field has another value than `only`, because zeroshard supports no other value. A field that is not
  // given is accepted.
  void require(std::string_view name, const nlohmann::json& only);
  // Marks fields as read, because they do not change the model.
  void ignore(std::initializer_list<const char*> names);
  // Throws if there are unread fields. Only fields with the value null or false, and fields whose names begin with "_",
  // may be unread.
  void finish() const;

  [[noreturn]] void fail(std::string_view name, const std::string& what) const;

 private:
  // Returns the field and marks it as read. If there is none, returns null if the field is `optional`, else throws.
  const nlohmann::json* find(std::string_view name, bool optional = true);
  void check_path(std::string_view name, const std::string& path) const;

  nlohmann::json object_;
  std::string source_, path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace zeroshard
