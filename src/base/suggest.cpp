#include "base/suggest.h"

#include <algorithm>
#include <optional>

#include "base/format.h"

namespace zeroshard {
namespace {

struct Split {
  std::string_view block, name;
};

Split split(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == path.npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  while (!name.empty()) {
    const size_t end = std::min(name.find('_'), name.size());
    if (end > 0) words.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  std::sort(words.begin(), words.end());
  return words;
}

// Returns the distance of two names by their words, or nothing if their words do not match. If `b` consists of the
// initials of `a` ("learning_rate", "lr"), the distance is 1. If both have several words and one has all words of the
// other, in any order ("warmup_steps", "warmup_num_steps"), the distance is the number of additional words, but at
// least 1.
std::optional<size_t> word_distance(std::string_view a, std::string_view b) {
  const std::vector<std::string_view> words = words_of(a), others = words_of(b);
  if (words.size() < 2) return {};
  std::string initials;
  for (size_t at = 0; at != a.npos && at < a.size(); at = a.find('_', at), at += at != a.npos) initials += a[at];
  if (initials == b) return 1;
  const auto& [few, many] =
      std::minmax(words, others, [](const auto& x, const auto& y) { return x.size() < y.size(); });
  if (few.size() < 2 || !std::includes(many.begin(), many.end(), few.begin(), few.end())) return {};
  return std::max<size_t>(1, many.size() - few.size());
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

std::string suggest_path(const std::string& path, const std::vector<std::string>& known) {
  constexpr size_t kLongestCompared = 100;  // a longer key is not a typing error
  if (path.size() > kLongestCompared) return "";
  const Split wanted = split(path);
  if (!wanted.block.empty() && std::ranges::find(known, wanted.name) != known.end())
    return concat(" '", wanted.name, "' belongs at the top level, outside of '", wanted.block, "'");
  const size_t limit = std::max<size_t>(1, std::min<size_t>(4, wanted.name.size() / 3));
  const std::string* best = nullptr;
  size_t best_distance = limit + 1;
  for (const std::string& candidate : known) {
    const Split other = split(candidate);
    const size_t in_wrong_block = other.block == wanted.block ? 0 : 1;
    size_t distance = std::min(edit_distance(wanted.name, other.name) + in_wrong_block,  //
                               edit_distance(path, candidate));
    if (const auto words = word_distance(wanted.name, other.name))
      distance = std::min(distance, *words + in_wrong_block);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best ? " did you mean '" + *best + "'?" : "";
}

std::string suggest_word(const std::string& word, const std::vector<std::string>& known) {
  const bool is_number = word.find_first_not_of("-.0123456789") == word.npos;
  const std::string nearest = is_number ? "" : suggest_path(word, known);
  return nearest.empty() ? "" : ";" + nearest;
}

}  // namespace zeroshard
