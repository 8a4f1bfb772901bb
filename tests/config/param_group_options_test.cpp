#include <gtest/gtest.h>

#include <set>
#include <string>

#include "zeroshard/config.h"

namespace zeroshard {
namespace {

TEST(ParamGroupOptions, NameEachFieldOnce) {
  ParamGroupOptions options;
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = options;  // compiles for twelve fields alone
  const std::set<const void*> fields{&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l};
  std::set<const void*> visited;
  std::set<std::string> names;
  ParamGroupOptions::for_each([&](const char* name, auto member) {
    names.insert(name);
    visited.insert(&(options.*member));
  });
  EXPECT_EQ(visited, fields);
  EXPECT_EQ(names.size(), fields.size());
}

}  // namespace
}  // namespace zeroshard
