#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/check.h"
#include "checkpoint/plain_names.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr int kSchema = 1;
constexpr int kMaxDepth = 64;
constexpr size_t kHashDigits = 16;
constexpr std::string_view kFirstLineStart = R"({"xxh3_64": ")";
constexpr std::string_view kFirstLineEnd = "\",\n";
constexpr size_t kFirstLine = kFirstLineStart.size() + kHashDigits + kFirstLineEnd.size();
// The text before the commit number. It begins the second line, so that the start of a manifest is enough to find the
// number.
constexpr std::string_view kSequenceStart = " \"sequence\": ";

std::string hex(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(kHashDigits, '0');
  for (size_t i = kHashDigits; i-- > 0; value >>= 4) text[i] = kDigits[value & 15];
  return text;
}

uint64_t from_hex(std::string_view text, const std::string& source) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  // The message does not contain the text, because the text might not be UTF-8. Digits must be lower case, like those
  // of hex(). One flipped bit turns a lower-case digit into an upper-case one, and the value would be the same, so the
  // damage would not be noticed.
  ZS_CHECK(text.size() == kHashDigits && error == std::errc() && end == text.data() + text.size() && hex(value) == text,
           source, " is damaged: a checksum in it does not have ", kHashDigits, " hexadecimal digits in lower case");
  return value;
}

std::string hex(const std::vector<uint64_t>& hashes) {
  std::string text;
  for (const uint64_t hash : hashes) text += hex(hash);
  return text;
}

Json to_json(const FileRecord& file) {
  return {{"name", file.name},
          {"size", file.size},
          {"header_bytes", file.header_bytes},
          {"header_hash", hex(file.header_hash)}};
}

Json to_json(const TensorRecord& tensor) {
  Json slices = Json::array();
  for (const FileSlice& slice : tensor.slices)
    slices.push_back({slice.file, slice.elements.begin, slice.elements.end, slice.offset, hex(slice.hashes)});
  return {{"name", tensor.name},       {"kind", tensor.kind},       {"dtype", tensor.dtype},
          {"shape", tensor.shape},     {"aliases", tensor.aliases}, {"trainable", tensor.trainable},
          {"updates", tensor.updates}, {"slices", slices}};
}

// Gives typed access to a JSON value. Throws ValueError with the path of the value, like "SOURCE.files[0].size".
class Reader {
 public:
  Reader(const Json& value, std::string where) : value_(value), where_(std::move(where)) {}

  Reader operator[](const char* key) const {
    ZS_CHECK(has(key), where_, ": '", key, "' is missing");
    return {value_.at(key), where_ + "." + key};
  }
  std::string text() const {
    ZS_CHECK(value_.is_string(), where_, " is not a string");
    return value_.get<std::string>();
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  bool boolean() const {
    ZS_CHECK(value_.is_boolean(), where_, " is not true or false");
    return value_.get<bool>();
  }
  int64_t count() const {
    ZS_CHECK(value_.is_number_unsigned() && value_.get<uint64_t>() <= uint64_t(INT64_MAX), where_,
             " is not a whole number from 0 on");
    return value_.get<int64_t>();
  }
  template <typename Function>
  void each(Function&& function) const {
    ZS_CHECK(value_.is_array(), where_, " is not an array");
    for (size_t i = 0; i < value_.size(); ++i) function(Reader(value_[i], concat(where_, "[", i, "]")));
  }
  Reader at(size_t i) const {
    ZS_CHECK(value_.is_array() && i < value_.size(), where_, " has fewer than ", i + 1, " entries");
    return {value_[i], concat(where_, "[", i, "]")};
  }
  template <typename Function>
  void each_member(Function&& function) const {
    ZS_CHECK(value_.is_object(), where_, " is not an object");
    for (const auto& [key, value] : value_.items()) function(key, Reader(value, concat(where_, ".", key)));
  }
  std::string dump() const { return value_.dump(); }
  const std::string& where() const { return where_; }

 private:
  const Json& value_;
  std::string where_;
};

Json parse_json(std::string_view text, const std::string& source) {
  Json value;
  try {
    value = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw ValueError(concat(source, ": nested deeper than ", kMaxDepth, " levels"));
      return true;
    });
  } catch (const Json::exception& error) {
    throw ValueError(concat(source, ": not valid JSON: ", error.what()));
  }
  ZS_CHECK(value.is_object(), source, ": not a JSON object");
  return value;
}

FileRecord read_file_record(const Reader& from) {
  FileRecord file;
  file.name = from["name"].text();
  const bool plain = std::all_of(file.name.begin(), file.name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
  ZS_CHECK(plain && !file.name.empty() && file.name[0] != '.' && file.name.size() < 128, from.where(), ": '",
           file.name.substr(0, 128), "' is not the name of a file of a checkpoint");
  file.size = from["size"].count();
  file.header_bytes = from["header_bytes"].count();
  file.header_hash = from_hex(from["header_hash"].text(), from["header_hash"].where());
  ZS_CHECK(file.header_bytes <= file.size, from.where(), ": header_bytes ", file.header_bytes, " is more than size ",
           file.size);
  return file;
}

FileSlice read_slice(const Reader& from, int64_t element_bytes) {
  FileSlice slice;
  slice.file = size_t(from.at(0).count());
  slice.elements = {from.at(1).count(), from.at(2).count()};
  slice.offset = from.at(3).count();
  const std::string hashes = from.at(4).text();
  ZS_CHECK(slice.elements.begin <= slice.elements.end, from.where(), " ends before it begins");
  ZS_CHECK(slice.elements.size() <= INT64_MAX / 8 / element_bytes, from.where(), " is too large");
  const int64_t bytes = slice.elements.size() * element_bytes;
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  ZS_CHECK(int64_t(hashes.size()) == pieces * int64_t(kHashDigits), from.where(), " has ", hashes.size(),
           " digits of checksums; ", bytes, " bytes have ", pieces * int64_t(kHashDigits));
  for (size_t i = 0; i < hashes.size(); i += kHashDigits)
    slice.hashes.push_back(from_hex(std::string_view(hashes).substr(i, kHashDigits), from.where()));
  return slice;
}

TensorRecord read_tensor(const Reader& from) {
  TensorRecord tensor;
  tensor.name = from["name"].text();
  tensor.kind = from["kind"].text();
  tensor.dtype = from["dtype"].text();
  const int64_t element_bytes = dtype_bytes(tensor.dtype);
  ZS_CHECK(element_bytes > 0, from.where(), " ('", tensor.name, "'): dtype '", tensor.dtype, "' is not known");
  int64_t numel = 1;
  from["shape"].each([&](const Reader& size) {
    tensor.shape.push_back(size.count());
    ZS_CHECK(!__builtin_mul_overflow(numel, tensor.shape.back(), &numel), from.where(), " ('", tensor.name,
             "'): the shape has more elements than can be counted");
  });
  from["aliases"].each([&](const Reader& alias) { tensor.aliases.push_back(alias.text()); });
  tensor.trainable = from["trainable"].boolean();
  tensor.updates = from["updates"].count();
  from["slices"].each([&](const Reader& slice) { tensor.slices.push_back(read_slice(slice, element_bytes)); });
  return tensor;
}

void check_tensor(const TensorRecord& tensor, const std::vector<FileRecord>& files, const std::string& source) {
  const std::string what = concat(source, ": '", tensor.name, "' (", tensor.kind, ")");
  int64_t next = 0;
  for (const FileSlice& slice : tensor.slices) {
    ZS_CHECK(slice.elements.begin == next, what, ": elements from ", std::min(next, slice.elements.begin), " to ",
             std::max(next, slice.elements.begin), " are missing or there twice");
    next = slice.elements.end;
    ZS_CHECK(slice.file < files.size(), what, " lies in file ", slice.file, " of ", files.size());
    const FileRecord& file = files[slice.file];
    const int64_t bytes = slice.elements.size() * dtype_bytes(tensor.dtype);
    ZS_CHECK(slice.offset >= file.header_bytes && slice.offset <= file.size && bytes <= file.size - slice.offset, what,
             " does not lie within ", file.name, " of ", file.size, " bytes");
  }
  ZS_CHECK(next == tensor.numel(), what, " has ", next, " elements in its files and ", tensor.numel(), " by its shape");
}

void check(const Manifest& manifest, const std::string& source) {
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (const TensorRecord& tensor : manifest.tensors) {
    check_tensor(tensor, manifest.files, source);
    std::vector<std::string_view> names(tensor.aliases.begin(), tensor.aliases.end());
    names.emplace_back(tensor.name);
    for (const std::string_view name : names) {
      const bool is_new = known.emplace(name, tensor.kind).second;
      ZS_CHECK(is_new, source, ": '", name, "' (", tensor.kind, ") is listed twice");
    }
  }
}

}  // namespace

int64_t dtype_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kSizes[] = {
      {"F64", 8}, {"I64", 8},  {"U64", 8},     {"C64", 8},         {"F32", 4},        {"I32", 4},     {"U32", 4},
      {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},         {"F8_E4M3", 1},    {"F8_E5M2", 1}, {"I8", 1},
      {"U8", 1},  {"BOOL", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}};
  for (const auto& [name, size] : kSizes)
    if (name == dtype) return size;
  return 0;
}

int64_t TensorRecord::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t Manifest::file_bytes() const {
  int64_t bytes = 0;
  for (const FileRecord& file : files) bytes += file.size;
  return bytes;
}

TensorIndex::TensorIndex(const Manifest& manifest) {
  for (const TensorRecord& tensor : manifest.tensors) {
    records_[{tensor.name, tensor.kind}] = &tensor;
    for (const std::string& alias : tensor.aliases) records_[{alias, tensor.kind}] = &tensor;
  }
}

const TensorRecord* TensorIndex::find(std::string_view name, std::string_view kind) const {
  const auto at = records_.find({name, kind});
  return at == records_.end() ? nullptr : at->second;
}

std::string to_text(const Manifest& manifest) {
  Json body{{"format", "zeroshard checkpoint"},
            {"schema", kSchema},
            {"tag", manifest.tag},
            {"step", manifest.step},
            {"latest", manifest.latest},
            {"config_digest", manifest.config_digest},
            {"versions", manifest.versions},
            {"state", Json::parse(manifest.state)}};
  body["ranks"] = Json::array();
  for (const std::string& state : manifest.rank_states) body["ranks"].push_back(Json::parse(state));
  body["files"] = Json::array();
  for (const FileRecord& file : manifest.files) body["files"].push_back(to_json(file));
  body["tensors"] = Json::array();
  for (const TensorRecord& tensor : manifest.tensors) body["tensors"].push_back(to_json(tensor));
  // The body's opening brace is removed, because the first line already contains one.
  const std::string text = concat(kSequenceStart, manifest.sequence, ",", body.dump(1).substr(1), "\n");
  return concat(kFirstLineStart, hex(hash_bytes(text.data(), int64_t(text.size()))), kFirstLineEnd, text);
}

bool starts_like_manifest(std::string_view text) {
  return text.starts_with(kFirstLineStart);
}

int64_t peek_sequence(std::string_view text) {
  if (!starts_like_manifest(text) || !text.substr(std::min(kFirstLine, text.size())).starts_with(kSequenceStart))
    return 0;
  const char* const begin = text.data() + kFirstLine + kSequenceStart.size();
  const char* const end = text.data() + text.size();
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stop != end && *stop == ',' ? std::max<int64_t>(value, 0) : 0;
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  ZS_CHECK(text.size() > kFirstLine && text.starts_with(kFirstLineStart) &&
               text.substr(kFirstLine - kFirstLineEnd.size(), kFirstLineEnd.size()) == kFirstLineEnd,
           source, ": not the manifest of a checkpoint (it does not begin with its checksum)");
  const uint64_t expected = from_hex(text.substr(kFirstLineStart.size(), kHashDigits), source);
  const std::string_view rest = text.substr(kFirstLine);
  ZS_CHECK(hash_bytes(rest.data(), int64_t(rest.size())) == expected, source, " is damaged: its checksum differs");
  const Json json = parse_json(text, source);
  const Reader reader(json, source);
  const int64_t schema = reader["schema"].count();
  ZS_CHECK(schema == kSchema, source, " has schema ", schema, "; this version reads ", kSchema,
           ": use the version of zeroshard that wrote it, or a newer one");
  Manifest manifest;
  manifest.text_hash = expected;
  manifest.step = reader["step"].count();
  if (reader.has("tag")) manifest.tag = reader["tag"].text();
  if (reader.has("sequence")) manifest.sequence = reader["sequence"].count();
  manifest.latest = reader["latest"].boolean();
  manifest.config_digest = reader["config_digest"].text();
  reader["versions"].each_member(
      [&](const std::string& name, const Reader& version) { manifest.versions[name] = version.text(); });
  manifest.state = reader["state"].dump();
  reader["ranks"].each([&](const Reader& rank) { manifest.rank_states.push_back(rank.dump()); });
  ZS_CHECK(manifest.world_size() > 0, source, ": 'ranks' is empty");
  reader["files"].each([&](const Reader& file) { manifest.files.push_back(read_file_record(file)); });
  reader["tensors"].each([&](const Reader& tensor) { manifest.tensors.push_back(read_tensor(tensor)); });
  make_names_plain(manifest.tensors);
  check(manifest, source);
  return manifest;
}

std::string to_text(const RankTable& table) {
  Json body{{"file", to_json(table.file)}, {"state", Json::parse(table.state)}, {"tensors", Json::array()}};
  for (const TensorRecord& tensor : table.tensors) body["tensors"].push_back(to_json(tensor));
  return body.dump();
}

RankTable parse_rank_table(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const Reader reader(json, source);
  RankTable table{read_file_record(reader["file"]), reader["state"].dump(), {}};
  reader["tensors"].each([&](const Reader& tensor) { table.tensors.push_back(read_tensor(tensor)); });
  return table;
}

void merge(std::vector<RankTable> tables, Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (RankTable& table : tables) {
    for (TensorRecord& tensor : table.tensors) {
      for (FileSlice& slice : tensor.slices) slice.file = manifest.files.size();
      const auto [at, added] = index.try_emplace({tensor.name, tensor.kind}, manifest.tensors.size());
      if (added) {
        manifest.tensors.push_back(std::move(tensor));
        continue;
      }
      TensorRecord& whole = manifest.tensors[at->second];
      ZS_CHECK(std::tie(whole.dtype, whole.shape, whole.trainable, whole.updates) ==
                   std::tie(tensor.dtype, tensor.shape, tensor.trainable, tensor.updates),
               "the ranks disagree on '", tensor.name, "' (", tensor.kind, ")");
      whole.slices.insert(whole.slices.end(), tensor.slices.begin(), tensor.slices.end());
    }
    manifest.files.push_back(std::move(table.file));
    manifest.rank_states.push_back(std::move(table.state));
  }
  for (TensorRecord& tensor : manifest.tensors)
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const FileSlice& a, const FileSlice& b) { return a.elements.begin < b.elements.begin; });
  check(manifest, "the checkpoint");
}

}  // namespace zeroshard
