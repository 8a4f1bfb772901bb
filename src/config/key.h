#pragma once
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/json_text.h"
#include "zeroshard/config.h"

// The rows of the table of configuration keys.
namespace zeroshard {

// The kinds of values that a key allows. Every key also allows null, which means "not given".
struct Bool {};
struct Integer {
  int64_t min = std::numeric_limits<int64_t>::min(), max = std::numeric_limits<int64_t>::max();
  bool truncate = false;  // true: a fraction is cut off; for sizes, which are often 0.9 times a square
};
struct Number {
  double min = -std::numeric_limits<double>::max(), max = std::numeric_limits<double>::max();
  bool above_min = false;  // `min` itself is not allowed
  bool below_max = false;
  bool infinite = false;   // Infinity is allowed
  bool per_group = false;  // a list with one value for each param group is allowed
};
struct Choice {
  std::vector<std::string> names;  // compared without regard to case
  std::string hint = "";           // follows the error about a value that is not allowed
};
struct Only {  // only `value` is allowed; if `value` is a boolean, 0 or 1 can stand for it
  Json value;
};
struct Betas {};  // two numbers in [0, 1)
struct Text {};
struct Strings {};
struct Paths {};        // a string or a list of strings; no string is empty
struct Amount {};       // an amount of memory: bytes, or a text with a unit
struct RanksOrHost {};  // a number of ranks, or "host"
struct Placements {};   // [{"units": pattern, "parameters": "replicated" or "sharded"}]
struct Anything {};
struct NothingEnabled {};  // an object without "enabled": true at any depth
using Allowed = std::variant<Bool, Integer, Number, Choice, Only, Betas, Text, Strings, Paths, Amount, RanksOrHost,
                             Placements, Anything, NothingEnabled>;

inline Integer at_least(int64_t min) {
  return {.min = min};
}
inline Integer size_in_elements() {
  return {.min = 0, .truncate = true};
}

// Says what "auto" means for a key.
enum class Auto : uint8_t {
  kDefault,               // the key's default
  kDefaultTold,           // the default, which the run logs, because it might surprise
  kRefuse,                // an error, because only the caller of zeroshard can know the value
  kHiddenSquaredTimes09,  // 0.9 * h * h, where h is the model's hidden size
  kTenHidden,             // 10 * h
};

struct Key {
  enum class Effect : uint8_t {
    kYes,
    kNone,  // zeroshard knows the key; `help` says why it has no effect
    // zeroshard lacks the feature that `help` names. `allowed` has the values that switch the feature off, or that ask
    // for what zeroshard does anyway.
    kUnsupported,
  };
  using Apply = std::function<void(Config&, const Json&)>;

  std::string path;
  Allowed allowed;
  Json default_value;  // null: no default
  std::string help;
  Effect effect = Effect::kYes;
  Apply apply = {};  // called only with kYes, and never with null
  Auto when_auto = Auto::kDefault;
  std::vector<std::string> aliases = {};
  bool required = false;
};

std::string describe(const Allowed& allowed);

// Returns `value` in its canonical form (3.0 as 3, "FP16" as "fp16"). Throws ConfigError with the path, the value and
// the allowed values if `value` is not allowed.
Json check_value(const Key& key, const Json& value);

[[noreturn]] void fail_value(const std::string& path, const Json& value, const std::string& problem);

inline Key inert(std::string path, Allowed allowed, Json default_value, std::string why) {
  return {std::move(path), std::move(allowed), std::move(default_value), std::move(why), Key::Effect::kNone};
}
inline Key unsupported(std::string path, Allowed neutral, Json default_value, std::string what) {
  return {std::move(path), std::move(neutral), std::move(default_value), std::move(what), Key::Effect::kUnsupported};
}

// Assigns `value` to the member `Member` of `config`.
template <auto Member>
void set(Config& config, const Json& value) {
  config.*Member = value.get<std::remove_cvref_t<decltype(config.*Member)>>();
}

// Converts the numbers 0 and 1 to false and true, as DeepSpeed does. Returns other values unchanged.
Json truth(const Json& value);

std::string lower(std::string text);
// Returns the DType of "fp32", "fp16" or "bf16".
DType to_dtype(const Json& name);

}  // namespace zeroshard
