#include "checkpoint/export_names.h"

#include <algorithm>

#include "base/format.h"

namespace zeroshard {
namespace {

constexpr size_t kDigits = 5;
constexpr std::string_view kExtension = ".safetensors";

std::string digits(size_t number) {
  const std::string text = std::to_string(number);
  return std::string(text.size() < kDigits ? kDigits - text.size() : 0, '0') + text;
}

// Removes all digits from the front of `text`. Returns whether there were at least kDigits.
bool take_digits(std::string_view& text) {
  const auto end = std::find_if(text.begin(), text.end(), [](char c) { return c < '0' || c > '9'; });
  const auto count = size_t(end - text.begin());
  text.remove_prefix(count);
  return count >= kDigits;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool is_numbered(std::string_view name, std::string_view stem) {
  return take(name, stem) && take(name, "-") && take_digits(name) && take(name, "-of-") && take_digits(name) &&
         name == kExtension;
}

}  // namespace

std::string export_name(std::string_view stem) {
  return concat(stem, kExtension);
}

std::string export_name(std::string_view stem, size_t index, size_t count) {
  return concat(stem, "-", digits(index + 1), "-of-", digits(count), kExtension);
}

std::string export_index_name(std::string_view stem) {
  return concat(stem, kExtension, ".index.json");
}

std::vector<std::string> list_exports(const Directory& directory, std::string_view stem) {
  std::vector<std::string> exports;
  const std::string index = export_index_name(stem);
  if (directory.exists(index)) exports.push_back(index);
  for (const std::string& name : directory.list())
    if (name == export_name(stem) || is_numbered(name, stem)) exports.push_back(name);
  return exports;
}

void remove_earlier_export(Directory& directory, std::string_view stem, const std::set<std::string>& written) {
  bool removed = false;
  // The index is deleted before the files that it names, because list_exports() returns the index first.
  for (const std::string& name : list_exports(directory, stem)) {
    if (written.contains(name)) continue;
    directory.remove(name);
    removed = true;
  }
  if (removed) directory.sync();
}

}  // namespace zeroshard
