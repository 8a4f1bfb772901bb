#include <gtest/gtest.h>

#include <set>
#include <string>

#include "zeroshard/config.h"

namespace zeroshard {
namespace {

TEST(ParamGroupOptions, NameEachFieldOnce) {
  ParamGroupOptions options;
  // These compile for twelve and for eight fields alone.
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = static_cast<const CommonOptions&>(options);
  const auto& [m, n, o, p, q, r, s, t] = static_cast<const MuonOptions&>(options);
  const std::set<const void*> fields{&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m, &n, &o, &p, &q, &r, &s, &t};
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
