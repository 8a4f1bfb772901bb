#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Returns the smallest number of edits that turn one text into the other. An edit inserts, deletes or replaces a
// character, or swaps two neighbours.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns " did you mean 'zero_optimization.stage'?" with the known path nearest to `path`, or "" if none is near. A
// path is near if it differs by at most n edits. n is the number of characters in the last part of `path` divided by 3,
// but at least 1 and at most 4. Compares also the last parts alone, so that a key in the wrong block is found, too.
// Also compares words: "warmup_steps" is near "warmup_num_steps", and "learning_rate" is near "lr". If `path` lies in a
// block but its last part is a known top-level key, returns instead a text that says that the key belongs at the top
// level. Returns "" for a `path` of more than 100 characters.
std::string suggest_path(const std::string& path, const std::vector<std::string>& known);

// Returns the end of an error about `word`, such as "; did you mean 'plan'?". Returns "" if no known word is near, or
// if `word` is a number.
std::string suggest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace zeroshard
