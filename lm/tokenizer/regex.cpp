#include "tokenizer/regex.h"

#include <array>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

constexpr size_t kMaxJitStackBytes = size_t{16} << 20;
// A search for a match may take kMatchSteps steps, plus kMatchStepsPerByte steps for each byte of the text. After that
// it throws.
constexpr uint32_t kMatchSteps = 1'000'000, kMatchStepsPerByte = 20;

std::string message_of(int error) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};

}  // namespace

struct Regex::Impl {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
  bool jit = false;
  std::string pattern;
};

struct Regex::Scratch::Impl {
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack;
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  if (!impl_->data || !impl_->context) throw std::bad_alloc();
  impl_->stack.reset(pcre2_jit_stack_create(size_t{32} << 10, kMaxJitStackBytes, nullptr));  // null if PCRE2 has no JIT
  pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::string_view pattern) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  const std::string translated = to_pcre2(pattern);
  const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                  context.get()));
  ZS_CHECK(impl_->code, "the regular expression '", pattern, "' (to PCRE2: '", translated,
           "') is not supported: ", message_of(error), " at byte ", offset);
  impl_->jit = pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, size_t from, Scratch& scratch, Match& match) const {
  Scratch::Impl& state = *scratch.impl_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto search = impl_->jit ? pcre2_jit_match : pcre2_match;
  // The limit is set for each match, because another expression may have used the same Scratch since the last one.
  const size_t steps = kMatchSteps + kMatchStepsPerByte * text.size();
  pcre2_set_match_limit(state.context.get(),
                        static_cast<uint32_t>(std::min<size_t>(steps, std::numeric_limits<uint32_t>::max())));
  const int result = search(impl_->code.get(), subject, text.size(), from, impl_->jit ? 0 : PCRE2_NO_UTF_CHECK,
                            state.data.get(), state.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  ZS_CHECK(result >= 0, "the regular expression '", impl_->pattern, "' fails on a text of ", text.size(),
           " bytes at byte ", from, ": ", message_of(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data.get());
  match = {ends[0], ends[1]};
  return true;
}

size_t Regex::after_character(std::string_view text, size_t at) {
  return at + (at < text.size() ? utf8_length(text[at]) : 1);
}

}  // namespace zeroshard
