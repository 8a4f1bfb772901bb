#include "checkpoint/model_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "checkpoint/convert.h"
#include "checkpoint/export_names.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr int64_t kConvertedBytes = 4 << 20;

FileReader open_followed(const std::string& directory, const std::string& name) {
  std::error_code error;
  const fs::path path = fs::canonical(fs::path(directory) / name, error);
  if (error) throw IoError(concat("cannot open '", (fs::path(directory) / name).string(), "': ", error.message()));
  return FileReader(Directory::open(posix_io(), path.parent_path()), path.filename());
}

std::string read_index(const std::string& path) {
  const FileReader file = open_followed(fs::path(path).parent_path().string(), fs::path(path).filename().string());
  ZS_CHECK(file.size() <= kMaxIndexBytes, file.path(), " has ", file.size(), " bytes; an index of at most ",
           kMaxIndexBytes, " is read");
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  return text;
}

// Returns the file of each tensor, by the name of the tensor.
std::map<std::string, std::string> parse_index(const std::string& text, const std::string& source) {
  const auto index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ZS_CHECK(!index.is_discarded(), source, " is not JSON");
  const bool sound = index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  ZS_CHECK(sound, source, " has no object 'weight_map'");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    ZS_CHECK(file.is_string(), source, ": the file of tensor '", tensor, "' is no string");
    const std::string name = file.get<std::string>();
    const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == name.npos;
    ZS_CHECK(plain && name.find('\0') == name.npos, source, ": the file of tensor '", tensor,
             "' must be a name in the same directory");
    files.emplace(tensor, name);
  }
  return files;
}

}  // namespace

int64_t ModelFiles::Tensor::numel() const {
  return (entry.end - entry.begin) * 8 / safetensors_dtype_bits(entry.dtype);
}

ModelFiles::ModelFiles(const std::string& directory, const std::string& stem) : directory_(directory) {
  const fs::path path(directory);
  const std::string single = export_name(stem), index = export_index_name(stem);
  if (fs::exists(path / index)) {
    add_indexed_files(stem);
  } else if (fs::exists(path / single)) {
    add_file(single);
  } else {
    throw IoError(concat("'", directory, "' has neither ", single, " nor ", index,
                         ": it must be a directory with weights in safetensors files"));
  }
}

void ModelFiles::add_file(const std::string& name) {
  files_.push_back({name, open_followed(directory_, name), 0});
  File& file = files_.back();
  SafetensorsHeader header = read_safetensors_header(file.reader);
  file.data_begin = header.data_begin;
  for (SafetensorsEntry& entry : header.entries) {
    const std::string tensor = entry.name;
    const auto [at, added] = tensors_.emplace(tensor, Tensor{std::move(entry), files_.size() - 1});
    ZS_CHECK(added, "tensor '", tensor, "' is in '", files_[at->second.file].name, "' and in '", name, "' of '",
             directory_, "'");
  }
}

void ModelFiles::add_indexed_files(const std::string& stem) {
  const std::string index_name = (fs::path(directory_) / export_index_name(stem)).string();
  const std::map<std::string, std::string> file_of = parse_index(read_index(index_name), index_name);
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  const std::string single = export_name(stem);
  ZS_CHECK(names == std::set{single} || !fs::exists(fs::path(directory_) / single), "'", directory_, "' has both ",
           single, " and ", fs::path(index_name).filename().string(),
           ", which names other files. Either may be the model, and other programs would read ", single,
           ". Remove the one that is left over from an earlier model");
  for (const std::string& name : names) add_file(name);
  for (const auto& [tensor, file] : file_of) {
    const Tensor* found = find(tensor);
    ZS_CHECK(found && files_[found->file].name == file, index_name, " says that tensor '", tensor, "' is in '", file,
             "', where it is not");
  }
  for (const auto& [name, tensor] : tensors_)
    ZS_CHECK(file_of.contains(name), "tensor ", name_of(tensor), " is not in ", index_name);
}

const ModelFiles::Tensor* ModelFiles::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string ModelFiles::name_of(const Tensor& tensor) const {
  return concat("'", tensor.entry.name, "' of '", (fs::path(directory_) / files_[tensor.file].name).string(), "'");
}

std::string ModelFiles::identity() const {
  std::string text;
  for (const auto& [name, tensor] : tensors_)
    text += concat(name, ' ', tensor.entry.dtype, ' ', tensor.entry.begin, ' ', tensor.entry.end, '\n');
  return concat("files with layout ", hash_bytes(text.data(), static_cast<int64_t>(text.size())));
}

void ModelFiles::read(const Tensor& tensor, int64_t begin, int64_t end, std::string_view dtype, void* out) const {
  ZS_CHECK(begin >= 0 && begin <= end && end <= tensor.numel(), "elements ", begin, " to ", end, " of tensor ",
           name_of(tensor), " with ", tensor.numel());
  const std::string& stored = tensor.entry.dtype;
  ZS_CHECK(stored == dtype || convertible(stored, dtype), "tensor ", name_of(tensor), " has dtype ", stored,
           ", which cannot be read as ", dtype);
  const File& file = files_[tensor.file];
  const int64_t bits = safetensors_dtype_bits(stored);
  const int64_t offset = file.data_begin + tensor.entry.begin;
  if (stored == dtype) return file.reader.read(offset + begin * bits / 8, out, (end - begin) * bits / 8);
  const int64_t piece = kConvertedBytes * 8 / bits, out_bytes = safetensors_dtype_bits(dtype) / 8;
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(piece, end - begin) * bits / 8));
  for (int64_t at = begin; at < end; at += piece) {
    const int64_t count = std::min(piece, end - at);
    file.reader.read(offset + at * bits / 8, bytes.data(), count * bits / 8);
    convert(bytes.data(), stored, static_cast<std::byte*>(out) + (at - begin) * out_bytes, dtype, count);
  }
}

}  // namespace zeroshard
