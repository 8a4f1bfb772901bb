#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard::testing {

// The cases of tests/cases/<table>.json, which tests of the Python front read, too. In the order of the file.
inline nlohmann::ordered_json read_cases(const std::string& table) {
  std::ifstream file(std::string(ZS_TEST_CASES) + "/" + table + ".json");
  return nlohmann::ordered_json::parse(file).at("cases");
}

}  // namespace zeroshard::testing
