#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/format.h"
#include "file/safetensors.h"
#include "file/shown.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kMaxOtherKeys = 1000;  // the most ignored keys of one tensor

// Takes the JSON as a stream of events. So no tree of JSON values is built besides the result, and an error ends the
// parsing immediately.
class HeaderEvents final : public nlohmann::json_sax<Json> {
 public:
  HeaderEvents(const std::string& source, SafetensorsHeader& header) : source_(source), header_(header) {}

  bool null() override { return scalar(Scalar::kNull); }
  bool boolean(bool) override { return scalar(Scalar::kOther); }
  bool number_integer(number_integer_t) override { return scalar(Scalar::kOther); }  // a negative number
  bool number_unsigned(number_unsigned_t value) override { return scalar(Scalar::kUnsigned, value); }
  bool number_float(number_float_t, const string_t&) override { return scalar(Scalar::kOther); }
  bool string(string_t& value) override { return scalar(Scalar::kString, 0, &value); }
  bool binary(binary_t&) override { return scalar(Scalar::kOther); }

  bool start_object(size_t) override {
    const Place place = stack_.empty()     ? Place::kRoot
                        : at(Place::kRoot) ? (in_metadata_ ? Place::kMetadata : Place::kTensor)
                        : at_ignored()     ? Place::kIgnored
                                           : refuse();
    if (place == Place::kTensor) {
      seen_ = {};
      others_.clear();
    }
    return enter(place);
  }
  bool start_array(size_t) override {
    if (at(Place::kTensor) && field_ == Field::kShape) return enter(Place::kShape);
    if (at(Place::kTensor) && field_ == Field::kOffsets) return enter(Place::kOffsets);
    return enter(at_ignored() ? Place::kIgnored : refuse());
  }
  bool end_array() override {
    if (at(Place::kOffsets) && offsets_ != 2) fail("its data_offsets have ", offsets_, " numbers, must have 2");
    return leave();
  }
  bool end_object() override {
    if (at(Place::kTensor)) {
      for (const auto& [field, name] : kFields)
        if (!seen_[size_t(field)]) fail("it has no ", name);
    }
    return leave();
  }
  bool key(string_t& name) override;
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    in_root_ = true;
    fail("it is not valid JSON in UTF-8 at byte ", position);
  }

 private:
  enum class Place { kRoot, kMetadata, kTensor, kShape, kOffsets, kIgnored };
  enum class Field { kDtype, kShape, kOffsets, kIgnored };
  static constexpr std::pair<Field, std::string_view> kFields[] = {
      {Field::kDtype, "dtype"}, {Field::kShape, "shape"}, {Field::kOffsets, "data_offsets"}};
  enum class Scalar { kNull, kUnsigned, kString, kOther };

  template <typename... Args>
  [[noreturn]] void fail(const Args&... args) const {
    const std::string where = in_root_       ? "the header"
                              : in_metadata_ ? "__metadata__"
                                             : concat("tensor '", shown(header_.entries.back().name), "'");
    throw ValueError(concat(source_, " is not a safetensors file that can be used: ", where, ": ", args...));
  }
  [[noreturn]] Place refuse() const {
    if (at(Place::kRoot)) fail(in_metadata_ ? "it must be an object {...}" : "its entry must be an object {...}");
    if (at(Place::kMetadata)) fail("the value of '", shown(metadata_key_), "' must be a string");
    if (at(Place::kShape)) fail("its shape must be an array of non-negative integers");
    if (at(Place::kOffsets)) fail("its data_offsets must be an array of non-negative integers");
    if (field_ == Field::kDtype) fail("its dtype must be a string");
    if (field_ == Field::kShape) fail("its shape must be an array of non-negative integers");
    fail("its data_offsets must be an array of non-negative integers");
  }

  bool at(Place place) const { return !stack_.empty() && stack_.back() == place; }
  bool at_ignored() const { return at(Place::kIgnored) || (at(Place::kTensor) && field_ == Field::kIgnored); }
  bool enter(Place place) {
    if (stack_.size() == kMaxSafetensorsDepth) fail("it is nested more than ", kMaxSafetensorsDepth, " deep");
    stack_.push_back(place);
    return true;
  }
  bool leave() {
    stack_.pop_back();
    if (at(Place::kRoot)) in_root_ = true;
    return true;
  }
  bool scalar(Scalar kind, uint64_t number = 0, std::string* text = nullptr);
  void add_number(uint64_t number);

  const std::string& source_;
  SafetensorsHeader& header_;
  std::vector<Place> stack_;
  bool in_root_ = true;  // whether the parser is neither in a tensor nor in the metadata; for messages
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  std::string metadata_key_;
  Field field_ = Field::kIgnored;  // which field of the tensor the next value belongs to
  std::array<bool, 3> seen_{};     // which fields of the tensor have occurred
  std::set<std::string> others_;   // which ignored keys of the tensor have occurred
  int offsets_ = 0;                // how many numbers data_offsets has so far
};

bool HeaderEvents::key(string_t& name) {
  if (at(Place::kRoot)) {
    in_root_ = false;
    in_metadata_ = name == kMetadata;
    if (in_metadata_) {
      if (seen_metadata_) fail("it is there twice");
      seen_metadata_ = true;
    } else {
      if (header_.entries.size() == size_t{kMaxSafetensorsEntries}) {
        in_root_ = true;
        fail("it has more than ", kMaxSafetensorsEntries, " tensors");
      }
      header_.entries.push_back({std::move(name), {}, {}, 0, 0});
    }
  } else if (at(Place::kMetadata)) {
    if (header_.metadata.size() == size_t{kMaxSafetensorsEntries})
      fail("it has more than ", kMaxSafetensorsEntries, " keys");
    if (header_.metadata.contains(name)) fail("the key '", shown(name), "' is there twice");
    metadata_key_ = std::move(name);
  } else if (at(Place::kTensor)) {
    field_ = Field::kIgnored;
    for (const auto& [field, known] : kFields)
      if (name == known) field_ = field;
    offsets_ = 0;
    if (others_.size() == kMaxOtherKeys) fail("it has ", kMaxOtherKeys, " unknown keys or more");
    const bool is_new =
        field_ == Field::kIgnored ? others_.insert(name).second : !std::exchange(seen_[size_t(field_)], true);
    if (!is_new) fail("the key '", shown(name), "' is there twice");
  }
  return true;
}

bool HeaderEvents::scalar(Scalar kind, uint64_t number, std::string* text) {
  if (at_ignored()) return true;
  if (at(Place::kRoot) && in_metadata_ && kind == Scalar::kNull) {
    in_root_ = true;
    return true;
  }
  if (at(Place::kMetadata) && kind == Scalar::kString) {
    header_.metadata.emplace(metadata_key_, std::move(*text));
  } else if (at(Place::kTensor) && field_ == Field::kDtype && kind == Scalar::kString) {
    if (safetensors_dtype_bits(*text) == 0) fail("the dtype '", shown(*text), "' is not known");
    header_.entries.back().dtype = std::move(*text);
  } else if ((at(Place::kShape) || at(Place::kOffsets)) && kind == Scalar::kUnsigned) {
    add_number(number);
  } else {
    refuse();
  }
  return true;
}

void HeaderEvents::add_number(uint64_t number) {
  SafetensorsEntry& entry = header_.entries.back();
  if (number > uint64_t{INT64_MAX}) fail("the number ", number, " is too large");
  if (at(Place::kShape)) {
    if (entry.shape.size() == size_t{kMaxSafetensorsDims})
      fail("it has more than ", kMaxSafetensorsDims, " dimensions");
    entry.shape.push_back(int64_t(number));
  } else {
    if (offsets_ == 2) fail("its data_offsets have more than 2 numbers");
    (offsets_ == 0 ? entry.begin : entry.end) = int64_t(number);
    ++offsets_;
  }
}

template <typename... Args>
[[noreturn]] void fail_tensor(const std::string& source, const SafetensorsEntry& entry, const Args&... args) {
  throw ValueError(
      concat(source, " is not a safetensors file that can be used: tensor '", shown(entry.name), "': ", args...));
}

// Returns how many bytes the dtype and shape of a tensor need. Multiplies in 64 bits, dimension by dimension, as the
// format's own reader does.
uint64_t bytes_of(const std::string& source, const SafetensorsEntry& entry) {
  uint64_t bits = 1;
  bool overflow = false;
  for (const int64_t size : entry.shape) overflow |= __builtin_mul_overflow(bits, uint64_t(size), &bits);
  overflow |= __builtin_mul_overflow(bits, uint64_t(safetensors_dtype_bits(entry.dtype)), &bits);
  if (overflow) fail_tensor(source, entry, "the number of its bytes does not fit 64 bits");
  if (bits % 8 != 0) fail_tensor(source, entry, "it has ", bits, " bits, which are no whole number of bytes");
  return bits / 8;
}

void check_names(const std::string& source, const std::vector<SafetensorsEntry>& entries) {
  std::vector<uint32_t> by_name(entries.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::sort(by_name.begin(), by_name.end(), [&](uint32_t a, uint32_t b) { return entries[a].name < entries[b].name; });
  for (size_t i = 1; i < by_name.size(); ++i) {
    const SafetensorsEntry& entry = entries[by_name[i]];
    if (entries[by_name[i - 1]].name == entry.name) fail_tensor(source, entry, "it is there twice");
  }
}

// Sorts the entries by offset, and checks that they fill the data without gap or overlap.
void check_layout(const std::string& source, std::vector<SafetensorsEntry>& entries, int64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != next)
      fail_tensor(source, entry, "it begins at byte ", entry.begin, " of the data, must begin at ", next,
                  ", where the one before ends");
    if (entry.end < entry.begin) fail_tensor(source, entry, "it ends at byte ", entry.end, ", before it begins");
    const uint64_t bytes = bytes_of(source, entry);
    if (uint64_t(entry.end - entry.begin) != bytes)
      fail_tensor(source, entry, "it has ", entry.end - entry.begin, " bytes, its dtype and shape need ", bytes);
    if (entry.end > data_bytes)
      fail_tensor(source, entry, "it ends at byte ", entry.end, " of the data, of which there are ", data_bytes,
                  ". Is the file cut off?");
    next = entry.end;
  }
  if (next != data_bytes)
    throw ValueError(concat(source, " is not a safetensors file that can be used: its tensors have ", next,
                            " bytes, but ", data_bytes, " bytes follow the header"));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view header_json, int64_t file_size, const std::string& source) {
  const auto refuse = [&](const auto&... args) {
    throw ValueError(concat(source, " is not a safetensors file that can be used: ", args...));
  };
  const auto bytes = int64_t(header_json.size());
  if (bytes > kMaxSafetensorsHeaderBytes || bytes > file_size - 8)
    refuse("its header has ", bytes, " bytes, and the file ", file_size);
  if (!header_json.starts_with('{')) refuse("its header does not begin with '{'");
  // Without this check, the JSON parser would take a zero byte for the end of the text.
  if (const size_t zero = header_json.find('\0'); zero != header_json.npos)
    refuse("its header has a zero byte at ", zero);
  SafetensorsHeader header;
  header.data_begin = 8 + bytes;
  HeaderEvents events(source, header);
  Json::sax_parse(header_json.begin(), header_json.end(), &events);
  check_names(source, header.entries);
  check_layout(source, header.entries, file_size - header.data_begin);
  return header;
}

}  // namespace zeroshard
