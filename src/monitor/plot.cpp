#include "monitor/plot.h"

#include <algorithm>
#include <cmath>

#include "monitor/number_text.h"

namespace zeroshard {
namespace {

// Sizes in pixels.
constexpr double kWidth = 800, kLeft = 72, kRight = 24, kTop = 40, kLossHeight = 280, kRateHeight = 110, kGap = 34;
constexpr double kBottom = 48;
constexpr double kMaxValue = 1e300;  // keeps differences finite
constexpr size_t kMaxDots = 60;      // a line with more groups (see Series) has dots only at isolated points

constexpr const char* kStyle =
    "<style>"
    ".page{fill:#ffffff}.grid{stroke:#e3e6ea}.axis{stroke:#6b7280}"
    "text{fill:#1f2933;font:12px sans-serif}.title{font-size:14px;font-weight:600}"
    "path,line{stroke-width:1;fill:none}polyline{stroke-width:1.6;stroke-linejoin:round;fill:none}"
    "polyline.loss,path.loss,line.loss{stroke:#1f6feb}circle.loss{fill:#1f6feb}"
    "polyline.validation,path.validation,line.validation{stroke:#d1570a}circle.validation{fill:#d1570a}"
    "polyline.rate,path.rate,line.rate{stroke:#1a7f4b}circle.rate{fill:#1a7f4b}"
    "path.mark,line.key{stroke-width:2}"
    "@media (prefers-color-scheme:dark){"
    ".page{fill:#12161c}.grid{stroke:#2b323c}.axis{stroke:#8b949e}text{fill:#e6edf3}"
    "polyline.loss,path.loss,line.loss{stroke:#6cb0ff}circle.loss{fill:#6cb0ff}"
    "polyline.validation,path.validation,line.validation{stroke:#ffa657}circle.validation{fill:#ffa657}"
    "polyline.rate,path.rate,line.rate{stroke:#57c78a}circle.rate{fill:#57c78a}}"
    "</style>\n";

struct Interval {
  double low = INFINITY, high = -INFINITY;
  bool empty() const { return low > high; }
  void add(double value) {
    value = std::clamp(value, -kMaxValue, kMaxValue);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Widens the range at each end by `part` of its size. A single point becomes a range, so that the size is never 0.
  void widen(double part) {
    const double size = high - low;
    const double more = size > 0 ? size * part : low == 0 ? 1 : std::max(std::abs(low) * 0.05, 1e-300);
    low -= more;
    high += more;
  }
};

struct Line {
  const char* css_class;
  const char* name;
  const char* label;
  const Series* series = nullptr;
};

struct Panel {
  double top, height;
  Interval steps, values;
  double x(double step) const {
    return kLeft + (step - steps.low) / (steps.high - steps.low) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    value = std::clamp(value, -kMaxValue, kMaxValue);
    return top + height - (value - values.low) / (values.high - values.low) * height;
  }
};

std::string pixels(double value) {
  return fixed_text(value, 2);
}

std::string quoted(const char* name, double value) {
  return std::string(" ") + name + "=\"" + pixels(value) + "\"";
}

std::string text_at(double x, double y, const char* attributes, const std::string& text) {
  return "<text" + quoted("x", x) + quoted("y", y) + " " + attributes + ">" + text + "</text>\n";
}

std::string line_at(const std::string& css_class, double x1, double y1, double x2, double y2) {
  return "<line class=\"" + css_class + "\"" + quoted("x1", x1) + quoted("y1", y1) + quoted("x2", x2) +
         quoted("y2", y2) + "/>\n";
}

// Returns the label of a tick. All labels of an axis have the same unit and the same number of decimals, except that
// zero among labels like 1.0e+09 is "0".
std::string tick_text(double value, const Ticks& ticks) {
  double largest = 0;
  for (const double tick : ticks.values) largest = std::max(largest, std::abs(tick));
  if (largest >= 1e9 || ticks.spacing < 1e-4) return value == 0 ? "0" : scientific_text(value, 1);
  const double unit = largest >= 1e6 ? 1e6 : largest >= 1e4 ? 1e3 : 1;
  const double digits = -std::floor(std::log10(ticks.spacing / unit) + 1e-9);
  return fixed_text(value / unit, int(std::max(digits, 0.0))) + (unit == 1e6 ? "M" : unit == 1e3 ? "k" : "");
}

std::string axes(const Panel& panel, const char* title, bool step_labels) {
  std::string svg;
  const double right = kWidth - kRight, bottom = panel.top + panel.height;
  const Ticks vertical = round_ticks(panel.values.low, panel.values.high, panel.height > 200 ? 6 : 3);
  for (const double tick : vertical.values) {
    svg += line_at("grid", kLeft, panel.y(tick), right, panel.y(tick));
    svg += text_at(kLeft - 8, panel.y(tick) + 4, "text-anchor=\"end\"", tick_text(tick, vertical));
  }
  const Ticks horizontal = round_ticks(panel.steps.low, panel.steps.high, 8, 1);
  for (const double tick : horizontal.values) {
    svg += line_at("grid", panel.x(tick), panel.top, panel.x(tick), bottom);
    if (!step_labels) continue;
    svg += text_at(panel.x(tick), bottom + 18, "text-anchor=\"middle\"", tick_text(tick, horizontal));
  }
  if (step_labels) svg += text_at((kLeft + right) / 2, bottom + 38, "text-anchor=\"middle\"", "step");
  svg += "<path class=\"axis\" d=\"M" + pixels(kLeft) + " " + pixels(panel.top) + "V" + pixels(bottom) + "H" +
         pixels(right) + "\"/>\n";
  svg += text_at(kLeft, panel.top - 10, "class=\"title\"", title);
  return svg;
}

// Draws the part of a line between two gaps. Each point gets a dot if the line has at most kMaxDots groups. The point
// of a part with only one point always gets a dot, because it would be invisible otherwise.
std::string piece(const Panel& panel, const Line& line, const std::vector<Series::Point>& points) {
  if (points.empty()) return {};
  const std::string css = std::string(" class=\"") + line.css_class + "\"";
  std::string svg;
  if (points.size() > 1) {
    svg = "<polyline" + css + " points=\"";
    for (const Series::Point& point : points) {
      if (&point != &points.front()) svg += ' ';
      svg.append(pixels(panel.x(double(point.step)))).append(",").append(pixels(panel.y(point.value)));
    }
    svg += "\"/>\n";
  }
  if (points.size() == 1 || line.series->groups().size() <= kMaxDots)
    for (const Series::Point& point : points)
      svg += "<circle" + css + quoted("cx", panel.x(double(point.step))) + quoted("cy", panel.y(point.value)) +
             " r=\"2.5\"/>\n";
  return svg;
}

std::string curve(const Panel& panel, const Line& line) {
  std::string svg, marks;
  std::vector<Series::Point> points;
  for (const Series::Group& group : line.series->groups()) {
    const std::vector<Series::Point> more = group.points();
    points.insert(points.end(), more.begin(), more.end());
    if (!group.not_finite_step) continue;
    svg += piece(panel, line, points);
    points.clear();
    const std::string x = pixels(panel.x(double(*group.not_finite_step)) - 4), y = pixels(panel.top + 4);
    marks += std::string("<path class=\"mark ") + line.css_class + "\" d=\"M" + x + " " + y + "l8 8m0 -8l-8 8\"/>\n";
  }
  return svg + piece(panel, line, points) + marks;
}

std::string legend(const Panel& panel, const std::vector<Line>& lines) {
  std::string svg;
  double x = kWidth - kRight;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string label = line->label;
    x -= 7 * double(label.size());
    svg += text_at(x, panel.top - 10, "class=\"label\"", label);
    svg += line_at(std::string("key ") + line->css_class, x - 26, panel.top - 14, x - 6, panel.top - 14);
    x -= 42;
  }
  return svg;
}

std::vector<Line> lines_of(const SeriesByName& series, std::initializer_list<Line> wanted) {
  std::vector<Line> lines;
  for (Line line : wanted) {
    const auto found = series.find(std::string_view(line.name));
    if (found == series.end() || found->second.empty()) continue;
    line.series = &found->second;
    lines.push_back(line);
  }
  return lines;
}

Interval steps_of(const std::vector<Line>& lines, Interval steps = {}) {
  for (const Line& line : lines)
    for (const Series::Group& group : line.series->groups()) {
      for (const Series::Point& point : group.points()) steps.add(double(point.step));
      if (group.not_finite_step) steps.add(double(*group.not_finite_step));
    }
  return steps;
}

Panel panel_of(const std::vector<Line>& lines, double top, double height, Interval steps) {
  Interval values;
  for (const Line& line : lines)
    for (const Series::Group& group : line.series->groups())
      for (const Series::Point& point : group.points()) values.add(point.value);
  if (values.empty()) values.add(0);  // no value is finite, so the panel has only crosses
  values.widen(0.05);
  return {top, height, steps, values};
}

}  // namespace

Ticks round_ticks(double low, double high, int count, double least) {
  const double rough = std::max((high - low) / count, least);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  Ticks ticks;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    ticks.spacing = factor * power;
    if (ticks.spacing >= rough * (1 - 1e-9)) break;
  }
  // Each tick is a product, because rounding errors would add up in a sum.
  for (double i = std::ceil(low / ticks.spacing); i * ticks.spacing <= high && ticks.values.size() < 100; ++i)
    ticks.values.push_back(i * ticks.spacing + 0.0);  // + 0.0 avoids a negative zero
  return ticks;
}

SeriesByName plotted_series() {
  SeriesByName series;
  for (const char* name : {"loss", "validation_loss", "tokens_per_second"}) series[name];
  return series;
}

std::string plot_svg(const SeriesByName& series, int64_t total_steps) {
  const std::vector<Line> losses =
      lines_of(series, {{"loss", "loss", "loss"}, {"validation", "validation_loss", "validation loss"}});
  const std::vector<Line> rates = lines_of(series, {{"rate", "tokens_per_second", "tokens per second"}});
  Interval steps = steps_of(losses, steps_of(rates));
  const std::string last = steps.empty() ? "0" : fixed_text(steps.high, 0);
  if (steps.empty()) steps.add(0);
  if (steps.low == steps.high) steps = {steps.low - 1, steps.high + 1};

  const double loss_height = losses.empty() ? 0 : kLossHeight + kGap;
  const double rate_height = rates.empty() ? 0 : kRateHeight + kGap;
  const double height = kTop + loss_height + rate_height + kBottom;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed_text(kWidth, 0) + " " +
                    fixed_text(height, 0) + "\"" + quoted("width", kWidth) + quoted("height", height) + ">\n";
  svg += kStyle;
  svg += "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
  svg += text_at(kLeft, 20, "class=\"progress\"",
                 "step " + last + (total_steps > 0 ? " of " + std::to_string(total_steps) : ""));
  if (losses.empty() && rates.empty()) svg += text_at(kLeft, kTop + 20, "class=\"title\"", "no records");
  if (!losses.empty()) {
    const Panel panel = panel_of(losses, kTop + kGap / 2, kLossHeight, steps);
    svg += axes(panel, "loss", rates.empty()) + legend(panel, losses);
    for (const Line& line : losses) svg += curve(panel, line);
  }
  if (!rates.empty()) {
    Panel panel = panel_of(rates, kTop + loss_height + kGap / 2, kRateHeight, steps);
    panel.values.low = std::min(panel.values.low, 0.0);  // rates start at zero, so that noise does not look large
    svg += axes(panel, "tokens per second", true);
    for (const Line& line : rates) svg += curve(panel, line);
  }
  return svg + "</svg>\n";
}

}  // namespace zeroshard
