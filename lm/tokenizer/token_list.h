#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tokenizer/tables.h"

namespace zeroshard {

// Maps ids to tokens and tokens to ids.
class TokenList {
 public:
  // `size` is the largest id + 1.
  explicit TokenList(int64_t size)
      : texts_(static_cast<size_t>(size)), used_(static_cast<size_t>(size), 0), ids_(static_cast<size_t>(size)) {}

  // Sets the token of an id. Returns false and changes nothing if the id already has another token. If several ids have
  // the same token, id_of() returns the id that was set last.
  bool set(int32_t id, const std::string& text) {
    const auto at = static_cast<size_t>(id);
    if (used_[at] != 0) return texts_[at] == text;
    texts_[at] = text;
    used_[at] = 1;
    ids_.insert(text, id);
    return true;
  }
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  bool has(int64_t id) const { return id >= 0 && id < size() && used_[static_cast<size_t>(id)] != 0; }
  // Returns the token of an id. Throws ValueError if there is none.
  const std::string& text(int32_t id) const {
    ZS_CHECK(has(id), "token id ", id, " is not in the vocabulary of ", size(), " ids");
    return texts_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> id_of(std::string_view text) const {
    const int32_t id = ids_.find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  }

 private:
  std::vector<std::string> texts_;
  std::vector<uint8_t> used_;
  StringTable ids_;
};

// Computes a digest of the values that are added to it. A tokenizer adds everything on which the results of its
// encode() depend.
class TokenizerDigest {
 public:
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  void add(int64_t value) { bytes_.append(std::to_string(value)) += ';'; }
  void add(const TokenList& tokens) {
    add(tokens.size());
    for (int32_t id = 0; id < tokens.size(); ++id) tokens.has(id) ? add(tokens.text(id)) : add(-1);
  }
  std::string text() const;  // 16 hexadecimal digits

 private:
  std::string bytes_;
};

}  // namespace zeroshard
