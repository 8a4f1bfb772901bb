#include "train/models/fields.h"

#include <cmath>

#include "base/check.h"
#include "base/shown_text.h"

namespace zeroshard {

using nlohmann::json;

Fields::Fields(json object, std::string source, std::string path)
    : object_(std::move(object)), source_(std::move(source)), path_(std::move(path)) {
  if (!object_.is_object())
    throw ValueError(concat(source_, ": ", path_.empty() ? "the file" : path_, " is no object"));
}

void Fields::fail(std::string_view name, const std::string& what) const {
  const auto found = object_.find(name);
  const std::string value = found == object_.end() ? "" : concat(" = ", shown_text(found->dump()));
  throw ValueError(concat(source_, ": ", path_, shown_text(name), value, ": ", what));
}

bool Fields::has(std::string_view name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

bool Fields::written(std::string_view name) const {
  return object_.contains(name);
}

const json* Fields::find(std::string_view name, bool optional) {
  known_.emplace(name);
  if (has(name)) return &*object_.find(name);
  if (!optional) fail(name, "is missing");
  return nullptr;
}

int64_t Fields::integer(std::string_view name, std::optional<int64_t> fallback) {
  const json* value = find(name, fallback.has_value());
  if (!value) return *fallback;
  const bool fits =
      value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() < (1ULL << 62));
  if (!fits || value->get<int64_t>() < 0) fail(name, "must be an integer of at least 0");
  return value->get<int64_t>();
}

int64_t Fields::positive(std::string_view name, std::optional<int64_t> fallback) {
  const int64_t value = integer(name, fallback);
  if (value < 1) fail(name, "must be at least 1");
  return value;
}

int64_t Fields::size(std::string_view name, std::optional<int64_t> fallback, int64_t most) {
  const int64_t value = positive(name, fallback);
  if (value > most) fail(name, concat("must be at most ", most));
  return value;
}

double Fields::number(std::string_view name, std::optional<double> fallback) {
  const json* value = find(name, fallback.has_value());
  if (!value) return *fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail(name, "must be a number");
  return value->get<double>();
}

double Fields::probability(std::string_view name, double fallback) {
  const double value = number(name, fallback);
  if (value < 0 || value >= 1) fail(name, "must be at least 0 and less than 1");
  return value;
}

bool Fields::boolean(std::string_view name, bool fallback) {
  const json* value = find(name);
  if (value && !value->is_boolean()) fail(name, "must be true or false");
  return value ? value->get<bool>() : fallback;
}

std::string Fields::text(std::string_view name, std::optional<std::string> fallback) {
  const json* value = find(name, fallback.has_value());
  if (!value) return *fallback;
  if (!value->is_string()) fail(name, "must be a string");
  return value->get<std::string>();
}

std::vector<std::string> Fields::texts(std::string_view name) {
  const json* value = find(name);
  if (!value) return {};
  if (!value->is_array()) fail(name, "must be a list of strings");
  for (const json& each : *value)
    if (!each.is_string()) fail(name, "must be a list of strings");
  return value->get<std::vector<std::string>>();
}

std::string Fields::path(std::string_view name, std::optional<std::string> fallback) {
  if (!has(name)) return text(name, std::move(fallback));
  const std::string path = text(name);
  check_path(name, path);
  return path;
}

std::vector<std::string> Fields::paths(std::string_view name) {
  const std::vector<std::string> paths = texts(name);
  for (const std::string& path : paths) check_path(name, path);
  return paths;
}

void Fields::check_path(std::string_view name, const std::string& path) const {
  if (path.empty()) fail(name, "must not be empty: it names a file or folder");
  if (path.find('\0') != path.npos) fail(name, "must not contain a zero byte: no name of a file does");
}

std::vector<std::string> Fields::text_or_texts(std::string_view name) {
  const json* value = find(name);
  if (value && value->is_string()) return {value->get<std::string>()};
  return texts(name);
}

std::optional<Fields> Fields::object(std::string_view name) {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) fail(name, "must be an object");
  return Fields(*value, source_, concat(path_, name, "."));
}

void Fields::require(std::string_view name, const json& only) {
  const json* value = find(name);
  if (value && *value != only) fail(name, concat("is not supported; only ", only.dump(), " is"));
}

void Fields::ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.emplace(name);
}

void Fields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    const bool harmless = value.is_null() || (value.is_boolean() && !value.get<bool>()) || name.starts_with("_");
    if (!harmless && !known_.contains(name))
      fail(name, "is not a field that is supported. If it does not change the model, remove it");
  }
}

}  // namespace zeroshard
