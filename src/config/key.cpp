#include "config/key.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/quantity.h"
#include "base/shown_text.h"
#include "config/unit_pattern.h"

namespace zeroshard {
namespace {

std::string number_text(double value) {
  return Json(value).dump();
}

std::string describe_one(const Bool&) {
  return "true or false";
}
std::string describe_one(const Integer& integer) {
  const bool has_min = integer.min != std::numeric_limits<int64_t>::min();
  const bool has_max = integer.max != std::numeric_limits<int64_t>::max();
  if (has_min && has_max) return concat("an integer from ", integer.min, " to ", integer.max);
  if (has_min) return concat("an integer of at least ", integer.min);
  if (has_max) return concat("an integer of at most ", integer.max);
  return "an integer";
}
std::string describe_one(const Number& number) {
  const std::string low = concat(number.above_min ? "above " : "of at least ", number_text(number.min));
  const std::string high = concat(number.below_max ? "below " : "at most ", number_text(number.max));
  std::string text = "a number";
  const bool has_min = number.min > std::numeric_limits<double>::lowest();
  const bool has_max = number.max < std::numeric_limits<double>::max();
  if (has_min) text += " " + low;
  if (has_max) text += (has_min ? " and " : " ") + high;
  if (number.infinite) text += ", or Infinity";
  if (number.per_group) text += ", or a list with one for each param group";
  return text;
}
std::string describe_one(const Choice& choice) {
  std::string text = choice.names.size() > 1 ? "one of " : "";
  for (const std::string& name : choice.names) text += (&name == &choice.names.front() ? "" : ", ") + name;
  return text;
}
std::string describe_one(const Only& only) {
  return shown(only.value);
}
std::string describe_one(const Betas&) {
  return "two numbers of at least 0 and below 1";
}
std::string describe_one(const Text&) {
  return "a string";
}
std::string describe_one(const Strings&) {
  return "a list of strings";
}
std::string describe_one(const Paths&) {
  return "a path or a list of paths";
}
std::string describe_one(const Amount&) {
  return R"(bytes, or a text with a unit, such as "8GiB")";
}
std::string describe_one(const RanksOrHost&) {
  return R"(a positive number of ranks, or "host")";
}
std::string describe_one(const Placements&) {
  return R"(a list of {"units": "layers.0-3", "parameters": "replicated" or "sharded"})";
}
std::string describe_one(const Anything&) {
  return "anything";
}
std::string describe_one(const NothingEnabled&) {
  return "an object in which nothing is enabled";
}

// Each check_one() returns the canonical form of `value`, or nothing if `value` is not allowed.
std::optional<Json> check_one(const Bool&, const Json& value) {
  const Json canonical = truth(value);
  return canonical.is_boolean() ? std::optional(canonical) : std::nullopt;
}

std::optional<Json> check_one(const Integer& integer, const Json& value) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  int64_t whole = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > uint64_t(std::numeric_limits<int64_t>::max())) return std::nullopt;
    whole = int64_t(wide);
  } else if (value.is_number_integer()) {
    whole = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (!(number >= -kTwoTo63 && number < kTwoTo63)) return std::nullopt;
    if (number != std::trunc(number) && !integer.truncate) return std::nullopt;
    if (number < double(integer.min)) return std::nullopt;  // checked before truncation, which makes -0.5 a 0
    whole = int64_t(number);
  } else {
    return std::nullopt;
  }
  if (whole < integer.min || whole > integer.max) return std::nullopt;
  return Json(whole);
}

std::optional<Json> check_one(const Number& number, const Json& value) {
  if (value == "Infinity" && number.infinite) return value;
  if (number.per_group && value.is_array()) {
    Number one = number;
    one.per_group = false;
    const auto fits = [&](const Json& item) { return check_one(one, item).has_value(); };
    return !value.empty() && std::all_of(value.begin(), value.end(), fits) ? std::optional(value) : std::nullopt;
  }
  if (!value.is_number()) return std::nullopt;
  const auto given = value.get<double>();
  if (number.above_min ? !(given > number.min) : !(given >= number.min)) return std::nullopt;
  if (number.below_max ? !(given < number.max) : !(given <= number.max)) return std::nullopt;
  return value;
}

std::optional<Json> check_one(const Choice& choice, const Json& value) {
  if (!value.is_string()) return std::nullopt;
  for (const std::string& name : choice.names) {
    if (lower(name) == lower(value.get<std::string>())) return Json(name);
  }
  return std::nullopt;
}

std::optional<Json> check_one(const Only& only, const Json& value) {
  const std::optional<Json> same = only.value.is_boolean() ? check_one(Bool{}, value) : std::optional(value);
  return same == only.value ? same : std::nullopt;
}

std::optional<Json> check_one(const Betas&, const Json& value) {
  if (!value.is_array() || value.size() != 2) return std::nullopt;
  for (const Json& beta : value) {
    if (!check_one(Number{.min = 0, .max = 1, .below_max = true}, beta)) return std::nullopt;
  }
  return value;
}

std::optional<Json> check_one(const Text&, const Json& value) {
  return value.is_string() ? std::optional(value) : std::nullopt;
}

std::optional<Json> check_one(const Strings&, const Json& value) {
  const bool fits =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
  return fits ? std::optional(value) : std::nullopt;
}

std::optional<Json> check_one(const Paths&, const Json& value) {
  const auto is_path = [](const Json& item) { return item.is_string() && !item.get<std::string>().empty(); };
  const bool is_list = value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_path);
  return is_path(value) || is_list ? std::optional(value) : std::nullopt;
}

// Returns the amount as a whole number of bytes.
std::optional<Json> check_one(const Amount&, const Json& value) {
  if (!value.is_string()) return check_one(Integer{.min = 1, .truncate = true}, value);
  const std::optional<double> bytes = bytes_in(value.get<std::string>());
  return bytes ? check_one(Integer{.min = 1, .truncate = true}, *bytes) : std::nullopt;
}

std::optional<Json> check_one(const RanksOrHost&, const Json& value) {
  if (value == "host") return value;
  return check_one(Integer{.min = 1, .max = std::numeric_limits<int>::max()}, value);
}

std::optional<Json> check_one(const Placements&, const Json& value) {
  if (!value.is_array()) return std::nullopt;
  for (const Json& rule : value) {
    if (!rule.is_object() || rule.size() != 2 || !rule.contains("units") || !rule.contains("parameters"))
      return std::nullopt;
    const Json &units = rule["units"], &parameters = rule["parameters"];
    if (!units.is_string() || !problem_of_pattern(units.get<std::string>()).empty()) return std::nullopt;
    if (parameters != "replicated" && parameters != "sharded") return std::nullopt;
  }
  return value;
}

std::optional<Json> check_one(const Anything&, const Json& value) {
  return value;
}

bool enables_something(const Json& value) {
  if (!value.is_structured()) return false;
  for (const auto& [name, item] : value.items()) {
    if ((value.is_object() && name == "enabled" && item == true) || enables_something(item)) return true;
  }
  return false;
}

std::optional<Json> check_one(const NothingEnabled&, const Json& value) {
  return value.is_object() && !enables_something(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string describe(const Allowed& allowed) {
  return std::visit([](const auto& kind) { return describe_one(kind); }, allowed);
}

Json check_value(const Key& key, const Json& value) {
  const std::optional<Json> checked = std::visit([&](const auto& kind) { return check_one(kind, value); }, key.allowed);
  if (checked) return *checked;
  if (key.effect == Key::Effect::kUnsupported) {
    fail_value(key.path, value, concat(key.help, "; allowed: ", describe(key.allowed)));
  }
  const Choice* const choice = std::get_if<Choice>(&key.allowed);
  const std::string hint = choice && !choice->hint.empty() ? "; " + choice->hint : "";
  fail_value(key.path, value, concat("must be ", describe(key.allowed), hint));
}

void fail_value(const std::string& path, const Json& value, const std::string& problem) {
  throw ConfigError(concat(shown_text(path), " = ", shown(value), ": ", problem));
}

Json truth(const Json& value) {
  return value == 0 || value == 1 ? Json(value == 1) : value;
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return text;
}

DType to_dtype(const Json& name) {
  if (name == "fp16") return DType::kFloat16;
  if (name == "bf16") return DType::kBFloat16;
  ZS_ASSERT(name == "fp32", name.dump());
  return DType::kFloat32;
}

}  // namespace zeroshard
