#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// A compiled regular expression over well-formed UTF-8. Immutable. Any number of threads may search, each with a
// Scratch of its own.
class Regex {
 public:
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };
  struct Match {
    size_t begin = 0, end = 0;
  };

  // `pattern` has Oniguruma's syntax. Throws ValueError for unsupported expressions.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls visit(match) for each match from left to right. Matches do not overlap, and an empty match never directly
  // follows another match. Throws ValueError if the search for a match takes too many steps.
  template <typename Visit>
  void each_match(std::string_view text, Scratch& scratch, const Visit& visit) const {
    Match match;
    size_t from = 0;
    bool any = false;
    for (size_t last_end = 0; from <= text.size() && find(text, from, scratch, match);) {
      if (match.begin == match.end && any && match.end == last_end) {
        from = after_character(text, from);
        continue;
      }
      any = true;
      from = last_end = match.end;
      visit(match);
    }
  }

 private:
  bool find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;
  static size_t after_character(std::string_view text, size_t at);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
