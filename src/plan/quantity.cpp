#include "base/quantity.h"

#include <cmath>

#include "base/check.h"
#include "zeroshard/plan.h"

namespace zeroshard {

int64_t parse_param_count(std::string_view text) {
  const double value = count_in(text).value_or(0);
  ZS_CHECK(value >= 1 && value <= double(kMaxParams) && value == std::floor(value), "'", text,
           "' is not a number of parameters: give a whole number from 1 to 1e14, such as 7.5e9, 7.5B or 350M");
  return int64_t(value);
}

double parse_bytes(std::string_view text) {
  const std::optional<double> value = bytes_in(text);
  ZS_CHECK(value, "'", text,
           "' is not an amount of memory: give bytes, or a number with a unit, such as 24e9, 24GB or 22.5GiB");
  return *value;
}

}  // namespace zeroshard
