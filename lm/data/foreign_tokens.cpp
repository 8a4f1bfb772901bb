#include "data/foreign_tokens.h"

#include <charconv>
#include <optional>

#include "base/check.h"
#include "data/token_format.h"
#include "file/shown.h"

namespace zeroshard {
namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";

// The header of a file of llm.c has 256 int32. The first is the magic, the second the version, and the third the number
// of tokens.
constexpr int64_t kLlmcHeadBytes = 1024;
constexpr int32_t kLlmcMagic16 = 20240520, kLlmcMagic32 = 20240801;

void check_size(const ForeignTokens& found, std::string_view file, const std::string& path) {
  // Divides `bytes` instead of multiplying `found.tokens`, because a damaged header can have any number of tokens, and
  // the product could overflow.
  const int64_t bytes = int64_t(file.size()) - found.begin, width = bytes_of(found.type);
  ZS_CHECK(found.tokens >= 0 && bytes % width == 0 && bytes / width == found.tokens, path, ": its header tells of ",
           found.tokens, " tokens of ", width, " bytes, but ", bytes, " bytes follow: it is cut off or damaged");
}

ForeignTokens parse_llmc(std::string_view file, const std::string& path) {
  ZS_CHECK(int64_t(file.size()) >= kLlmcHeadBytes, path, " begins like a file of llm.c, but has ", file.size(),
           " bytes; their header alone has ", kLlmcHeadBytes);
  const bool wide = load<int32_t>(file.data()) == kLlmcMagic32;
  const int32_t version = load<int32_t>(file.data() + 4), known = wide ? 7 : 1;
  ZS_CHECK(version == known, path, ": the version in its llm.c header is ", version, ", known is ", known);
  ForeignTokens found{"llm.c", wide ? IdType::kUint32 : IdType::kUint16, kLlmcHeadBytes,
                      load<int32_t>(file.data() + 8)};
  check_size(found, file, path);
  return found;
}

// Reads the Python literal of a .npy header: {'descr': '<u2', 'fortran_order': False, 'shape': (5,), }.
class NumpyHeader {
 public:
  NumpyHeader(std::string_view text, const std::string& path) : text_(text), path_(path) { parse(); }

  std::string descr;
  std::optional<bool> fortran_order;
  std::optional<int64_t> length;

 private:
  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key(quoted());
      expect(':');
      if (key == "descr" && descr.empty()) {
        descr = quoted();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !length) {
        length = one_dimension();
      } else {
        fail(concat("the key '", shown(key), "' is not known, or there twice"));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("there is more behind its '}'");
    if (descr.empty() || !fortran_order || !length) fail("it lacks 'descr', 'fortran_order' or 'shape'");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw ValueError(concat(path_, ": the .npy header cannot be used: ", what));
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(concat("'", c, "' is missing at byte ", at_ + 1, " of '", shown(text_), "'"));
  }
  std::string_view quoted() {
    skip_space();
    const char quote = at_ < text_.size() && text_[at_] == '"' ? '"' : '\'';
    expect(quote);
    const size_t end = text_.find(quote, at_);
    if (end == text_.npos) fail("a string does not end");
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view name = value ? "True" : "False";
      if (!text_.substr(at_).starts_with(name)) continue;
      at_ += name.size();
      return value;
    }
    fail("'fortran_order' is neither True nor False");
  }
  int64_t one_dimension() {
    expect('(');
    skip_space();
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) fail("'shape' must be one number: the array must have one dimension");
    at_ = size_t(end - text_.data());
    expect(',');
    if (!accept(')')) fail("'shape' must be one number: the array must have one dimension");
    return value;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
};

ForeignTokens parse_numpy(std::string_view file, const std::string& path) {
  const size_t fixed = kNumpyMagic.size() + 2;
  ZS_CHECK(file.size() >= fixed + 4, path, " begins like a .npy file, but has ", file.size(), " bytes");
  const int major = static_cast<unsigned char>(file[kNumpyMagic.size()]);
  ZS_CHECK(major >= 1 && major <= 3, path, ": the version of its .npy format is ", major, ", known are 1 to 3");
  const size_t width = major == 1 ? 2 : 4;
  const size_t size = major == 1 ? load<uint16_t>(file.data() + fixed) : load<uint32_t>(file.data() + fixed);
  const std::string_view rest = file.substr(fixed + width);
  ZS_CHECK(size <= rest.size(), path, ": its .npy header has ", size, " bytes, but ", rest.size(), " follow");
  const NumpyHeader header(rest.substr(0, size), path);
  ZS_CHECK(!*header.fortran_order, path, ": fortran_order is True, must be False: save it with order='C'");
  const std::string& descr = header.descr;
  const auto type = descr == "<u2"   ? std::optional(IdType::kUint16)
                    : descr == "<u4" ? std::optional(IdType::kUint32)
                    : descr == "<i4" ? std::optional(IdType::kInt32)
                    : descr == "<i8" ? std::optional(IdType::kInt64)
                                     : std::nullopt;
  ZS_CHECK(type, path, ": its dtype is '", shown(descr),
           "', must be <u2, <u4, <i4 or <i8 (uint16, uint32, int32, int64)");
  ForeignTokens found{"npy", *type, int64_t(fixed + width + size), *header.length};
  check_size(found, file, path);
  return found;
}

}  // namespace

ForeignTokens parse_foreign_tokens(std::string_view file, const std::string& path) {
  if (path.ends_with(".u16")) {
    ZS_CHECK(file.size() % 2 == 0, path, " has ", file.size(), " bytes, no whole number of uint16");
    return {"u16", IdType::kUint16, 0, int64_t(file.size() / 2)};
  }
  if (file.starts_with(kNumpyMagic)) return parse_numpy(file, path);
  const int32_t first = file.size() >= 4 ? load<int32_t>(file.data()) : 0;
  if (first == kLlmcMagic16 || first == kLlmcMagic32) return parse_llmc(file, path);
  throw ValueError(concat(path,
                          " is no file of tokens: it begins neither as those of `zeroshard tokenize`, nor of llm.c, "
                          "nor as .npy; plain uint16 ids need a name that ends in .u16"));
}

}  // namespace zeroshard
