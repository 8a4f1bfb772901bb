#include "file/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/align.h"
#include "base/check.h"
#include "file/durable.h"
#include "file/shown.h"

namespace zeroshard {
namespace {

constexpr int64_t kLengthBytes = 8;

struct Dtype {
  std::string_view name;
  int bits;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    std::string name = shown(text);  // the message must be UTF-8, which `text` is not
    for (char& c : name)
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    throw ValueError(concat("'", name, "' cannot be written to a safetensors header: it is not UTF-8"));
  }
}

template <typename Items, typename ToText>
std::string joined(const Items& items, const ToText& to_text) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ',';
    text += to_text(item);
  }
  return text;
}

std::string to_json(const SafetensorsEntry& entry) {
  ZS_CHECK(entry.name != "__metadata__", "'__metadata__' cannot be the name of a tensor in a safetensors file");
  const std::string shape = joined(entry.shape, [](int64_t size) { return std::to_string(size); });
  return quoted(entry.name) + ":{\"dtype\":" + quoted(entry.dtype) + ",\"shape\":[" + shape + "],\"data_offsets\":[" +
         std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  for (const Dtype& known : kDtypes)
    if (known.name == dtype) return known.bits;
  return 0;
}

int64_t safetensors_header_bytes(std::string_view first_bytes, int64_t file_size, const std::string& source) {
  ZS_CHECK(first_bytes.size() >= size_t{kLengthBytes} && file_size >= kLengthBytes, source,
           " is not a safetensors file that can be used: it has ", file_size, " bytes, which is too few");
  uint64_t bytes = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) bytes = bytes << 8 | static_cast<unsigned char>(first_bytes[size_t(i)]);
  const auto most = uint64_t(std::min(kMaxSafetensorsHeaderBytes, file_size - kLengthBytes));
  ZS_CHECK(bytes <= most, source, " is not a safetensors file that can be used: its header claims ", bytes,
           " bytes, at most ", most, " are possible");
  return int64_t(bytes);
}

SafetensorsHeader read_safetensors_header(const FileReader& file) {
  std::array<char, kLengthBytes> length{};
  file.read(0, length.data(), std::min(kLengthBytes, file.size()));
  const int64_t bytes = safetensors_header_bytes({length.data(), length.size()}, file.size(), file.path());
  std::string json(size_t(bytes), '\0');
  file.read(kLengthBytes, json.data(), bytes);
  return parse_safetensors_header(json, file.size(), file.path());
}

std::string make_safetensors_header(std::span<const SafetensorsEntry> entries,
                                    const std::map<std::string, std::string>& metadata, int64_t alignment) {
  ZS_CHECK(alignment >= 8 && std::has_single_bit(uint64_t(alignment)),
           "alignment must be a power of two of at least 8, got ", alignment);
  int64_t data_bytes = 0;
  for (const SafetensorsEntry& entry : entries) data_bytes = std::max(data_bytes, entry.end);
  std::string text = "{";
  if (!metadata.empty()) {
    const auto to_text = [](const auto& item) { return quoted(item.first) + ":" + quoted(item.second); };
    text += "\"__metadata__\":{" + joined(metadata, to_text) + "}" + (entries.empty() ? "" : ",");
  }
  text += joined(entries, to_json) + "}";
  const int64_t data_begin = align_up(kLengthBytes + int64_t(text.size()), alignment);
  text.resize(size_t(data_begin - kLengthBytes), ' ');
  ZS_CHECK(data_bytes <= INT64_MAX - data_begin, "a safetensors file cannot have ", data_bytes, " bytes of data");
  parse_safetensors_header(text, data_begin + data_bytes, "the header to be written");
  std::string result(size_t{kLengthBytes}, '\0');
  for (size_t i = 0; i < result.size(); ++i) result[i] = char(text.size() >> (8 * i) & 0xFF);
  return result + text;
}

}  // namespace zeroshard
