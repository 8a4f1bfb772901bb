#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/configuration.h"
#include "zeroshard/error.h"

namespace zeroshard {

using testing::configuration;
using testing::ranks;

// The message of the ConfigError, or "" when there is none.
inline std::string error_of(std::string_view json, const ConfigContext& context = ranks(1)) {
  try {
    parse_config(json, context);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

inline void expect_error(std::string_view json, const std::vector<std::string>& parts,
                         const ConfigContext& context = ranks(1)) {
  SCOPED_TRACE(json);
  const std::string message = error_of(json, context);
  EXPECT_NE(message, "");
  for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
}

inline ConfigValue value_of(const ParsedConfig& parsed, const std::string& path) {
  for (const ConfigValue& value : parsed.values) {
    if (value.path == path) return value;
  }
  ADD_FAILURE() << path << " is not among the values";
  return {};
}

}  // namespace zeroshard
