#include "monitor/progress_text.h"

#include <algorithm>

#include "monitor/number_text.h"

namespace zeroshard {
namespace {

constexpr size_t kMinBar = 10, kMaxBar = 30;  // the least and the greatest width between the brackets

std::string described(const std::string& name, double value) {
  if (name == "tokens_per_second") return rate_text(value) + " tok/s";
  if (name == "memory_bytes") return "mem " + bytes_text(value);
  if (name == "lr") return "lr " + scientific_text(value, 1);
  if (name == "grad_norm") return "grad_norm " + value_text(value, 3);
  if (name == "perplexity") return "perplexity " + value_text(value, 2);
  return name + " " + value_text(value);
}

std::string count_of(const ProgressState& state) {
  return std::to_string(state.step) + "/" + std::to_string(state.total_steps);
}

std::string time_left(const ProgressState& state) {
  return state.seconds_left < 0 ? "" : "  eta " + duration_text(state.seconds_left);
}

std::string bar_of(double fraction, size_t width) {
  const auto full = static_cast<size_t>(fraction * double(width));
  std::string bar(full, '=');
  if (full < width) bar += '>';
  bar.resize(width, ' ');
  return "[" + bar + "] ";
}

}  // namespace

std::string progress_text(const ProgressState& state) {
  std::string text = "step " + count_of(state);
  for (const auto& [name, value] : state.values) text += "  " + described(name, value);
  return text + time_left(state);
}

std::string progress_bar(const ProgressState& state, size_t columns) {
  const double fraction = std::clamp(double(state.step) / double(state.total_steps), 0.0, 1.0);
  std::string text = std::to_string(static_cast<int>(100 * fraction)) + "% " + count_of(state);
  text.insert(0, text.find('%') < 3 ? 3 - text.find('%') : 0, ' ');
  for (const char* name : {"loss", "lr", "tokens_per_second"})
    for (const auto& [known, value] : state.values)
      if (known == name) text += "  " + described(known, value);
  text += time_left(state);
  for (const auto& [name, value] : state.values)
    if (name == "memory_bytes") text += "  " + described(name, value);

  constexpr size_t kBrackets = 3;  // two brackets and a space
  const size_t room = columns > text.size() + kBrackets ? columns - text.size() - kBrackets : 0;
  std::string line = room < kMinBar ? text : bar_of(fraction, std::min(room, kMaxBar)) + text;
  if (line.size() > columns) line.resize(columns);
  return line;
}

}  // namespace zeroshard
