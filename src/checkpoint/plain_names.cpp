#include "checkpoint/plain_names.h"

#include <algorithm>
#include <map>
#include <utility>

namespace zeroshard {
namespace {

// The name of the submodule into which torch.compile puts the original module.
constexpr std::string_view kCompiled = "_orig_mod.";
// The kinds of tensors in the state that a user saves: "client" for the run, and "client@RANK" for each rank.
constexpr std::string_view kClient = "client", kRankClient = "client@";

std::vector<std::string> names_of(const TensorRecord& tensor) {
  std::vector<std::string> names{tensor.name};
  names.insert(names.end(), tensor.aliases.begin(), tensor.aliases.end());
  return names;
}

bool is_plain(const TensorRecord& tensor) {
  const std::vector<std::string> names = names_of(tensor);
  return tensor.kind == kClient || tensor.kind.starts_with(kRankClient) ||
         std::all_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.find(kCompiled) == std::string::npos; });
}

}  // namespace

std::string plain_name(std::string_view name) {
  std::string plain;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot == std::string_view::npos ? dot : dot + 1);
    if (part != kCompiled) plain += part;
    name.remove_prefix(part.size());
  }
  return plain;
}

void make_names_plain(std::vector<TensorRecord>& tensors) {
  if (std::all_of(tensors.begin(), tensors.end(), is_plain)) return;
  constexpr size_t kSeveral = SIZE_MAX;
  // For each kind and plain name: the tensor that gets it, or kSeveral if several tensors would get it.
  std::map<std::pair<std::string, std::string>, size_t> owners;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const std::string& name : names_of(tensors[i])) {
      const auto [at, is_new] = owners.try_emplace({tensors[i].kind, plain_name(name)}, i);
      if (at->second != i) at->second = kSeveral;
    }
  }
  for (TensorRecord& tensor : tensors) {
    if (is_plain(tensor)) continue;
    std::vector<std::string> plain;
    for (const std::string& name : names_of(tensor)) {
      std::string short_name = plain_name(name);
      if (owners.at({tensor.kind, short_name}) == kSeveral) short_name = name;
      if (std::find(plain.begin(), plain.end(), short_name) == plain.end()) plain.push_back(std::move(short_name));
    }
    tensor.name = plain.front();
    tensor.aliases.assign(plain.begin() + 1, plain.end());
  }
}

}  // namespace zeroshard
