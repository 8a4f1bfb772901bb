#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/release.h"

namespace {

// The names of all tests, where of each test that has a table of cases one case is named. The test's own name chooses
// the case, so that neighbouring tests run different ones. Google Test separates names by a colon.
std::string one_case_of_each() {
  std::map<std::string, std::vector<std::string>> cases;
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const auto& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(t)->name();
      cases[name.substr(0, name.find('/', name.find('.')))].push_back(name);
    }
  }
  std::string names;
  for (const auto& [test, of_test] : cases) names += of_test[std::hash<std::string>()(test) % of_test.size()] + ":";
  return names;
}

}  // namespace

// The main function of test programs whose cases each start a world of ranks.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (zeroshard::testing::sample() && GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, one_case_of_each());
  return RUN_ALL_TESTS();
}
