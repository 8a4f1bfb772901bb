#include "monitor/plot.h"

#include <cmath>

#include "monitor/support.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What is not well-formed in a document of elements, attributes and text; empty: nothing.
std::string flaw_of(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; (at = xml.find('<', at)) != xml.npos;) {
    const size_t end = xml.find('>', at);
    if (end == xml.npos) return "a tag without an end";
    std::string tag = xml.substr(at + 1, end - at - 1);
    at = end;
    if (tag.find('<') != tag.npos) return "a tag within a tag: " + tag;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "a quote is open: " + tag;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes what is not open: " + tag;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  if (xml.find('&') != xml.npos) return "an entity";
  return open.empty() ? "" : "stays open: " + open.back();
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// Of the lines of a class.
std::vector<std::pair<double, double>> points_of(const std::string& svg, const std::string& css_class) {
  std::vector<std::pair<double, double>> points;
  const std::string begin = "<polyline class=\"" + css_class + "\" points=\"";
  for (size_t at = svg.find(begin); at != svg.npos; at = svg.find(begin, at + 1)) {
    std::istringstream text(svg.substr(at + begin.size(), svg.find('"', at + begin.size()) - at - begin.size()));
    char comma;
    for (double x, y; text >> x >> comma >> y;) points.push_back({x, y});
  }
  return points;
}

SeriesByName run_of(int64_t steps) {
  SeriesByName series = plotted_series();
  for (int64_t step = 1; step <= steps; ++step) {
    series["loss"].add(step, 2 + 8 / std::sqrt(double(step)));
    if (step % 50 == 0) series["validation_loss"].add(step, 2.2 + 8 / std::sqrt(double(step)));
    series["tokens_per_second"].add(step, 12000 + double(step % 7) * 100);
  }
  return series;
}

TEST(Plot, HasOnePointPerRecordInsideItsAxes) {
  const std::string svg = plot_svg(run_of(500), 500);
  EXPECT_EQ(flaw_of(svg), "");
  const auto loss = points_of(svg, "loss");
  ASSERT_EQ(loss.size(), 500u);
  EXPECT_EQ(points_of(svg, "validation").size(), 10u);
  EXPECT_EQ(points_of(svg, "rate").size(), 500u);
  for (size_t i = 1; i < loss.size(); ++i) {
    EXPECT_GT(loss[i].first, loss[i - 1].first);
    EXPECT_GE(loss[i].second, loss[i - 1].second);  // the loss falls, and y points downwards
  }
  for (const auto& [x, y] : points_of(svg, "rate"))
    EXPECT_TRUE(x >= 72 && x <= 776 && y > 340 && y < 500) << x << " " << y;
}

TEST(Plot, HasAxesLabelsAndALegend) {
  const std::string svg = plot_svg(run_of(500), 800);
  for (const char* text : {">loss<", ">validation loss<", ">tokens per second<", ">step<", ">step 500 of 800<", ">10<",
                           ">500<", ">10k<", ">0k<", "prefers-color-scheme:dark"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_EQ(count(svg, "class=\"axis\""), 2u);
  EXPECT_EQ(count(svg, "\"key "), 2u);
  EXPECT_EQ(svg, plot_svg(run_of(500), 800));
}

TEST(Plot, LongRunsHaveAtMostTwoThousandPoints) {
  const std::string svg = plot_svg(run_of(30000), 0);
  const size_t points = points_of(svg, "loss").size();
  EXPECT_GE(points, 500u);
  EXPECT_LE(points, 2000u);
  EXPECT_LT(svg.size(), 100'000u);
  EXPECT_THAT(svg, HasSubstr(">step 30000<"));
}

TEST(Plot, WhatIsNotFiniteBreaksTheLineWithACross) {
  SeriesByName series = plotted_series();
  for (const double value : {5.0, 4.0, double(NAN), double(INFINITY), 3.0, 2.0, double(-INFINITY), 1.0})
    series["loss"].add(int64_t(series["loss"].groups().size()), value);
  const std::string svg = plot_svg(series, 0);
  EXPECT_EQ(flaw_of(svg), "");
  EXPECT_EQ(count(svg, "<polyline class=\"loss\""), 2u);
  EXPECT_EQ(points_of(svg, "loss").size(), 4u);
  EXPECT_EQ(count(svg, "<circle class=\"loss\""), 5u);  // the last value has no neighbour
  EXPECT_EQ(count(svg, "class=\"mark loss\""), 3u);
}

TEST(Plot, AnyValuesGiveAWholePicture) {
  const std::vector<std::vector<double>> runs = {
      {},       {1}, {0, 0}, {NAN}, {-3, -3, -3}, {1e308, -1e308}, {5e-324, 0}, {1e-300, 2e-300}, {1e17, 1e17 + 32},
      {1, 1e12}};
  for (const std::vector<double>& run : runs) {
    SeriesByName series = plotted_series();
    for (size_t step = 0; step < run.size(); ++step) series["loss"].add(int64_t(step), run[step]);
    const std::string svg = plot_svg(series, 10);
    SCOPED_TRACE(svg);
    EXPECT_EQ(flaw_of(svg), "");
    EXPECT_THAT(svg, Not(HasSubstr("NaN")));
    EXPECT_THAT(svg, Not(HasSubstr("Infinity")));
    for (const auto& [x, y] : points_of(svg, "loss"))
      EXPECT_TRUE(x >= 72 && x <= 776 && y >= 57 && y <= 337) << x << " " << y;
  }
  EXPECT_THAT(plot_svg(plotted_series(), 10), HasSubstr("no records"));
}

TEST(Plot, TicksAreRoundNumbers) {
  const auto ticks = [](double low, double high, int wanted, double least = 0) {
    return round_ticks(low, high, wanted, least).values;
  };
  EXPECT_THAT(ticks(0, 10, 5), ::testing::ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(-0.7, 2.3, 3), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(ticks(1, 3, 8, 1), ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(ticks(0.101, 0.109, 4), ::testing::ElementsAre(::testing::DoubleEq(0.102), ::testing::DoubleEq(0.104),
                                                             ::testing::DoubleEq(0.106), ::testing::DoubleEq(0.108)));
}

}  // namespace
}  // namespace zeroshard
