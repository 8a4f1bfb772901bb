#include "checkpoint/reader.h"

#include <algorithm>

#include "base/check.h"
#include "checkpoint/convert.h"
#include "checkpoint/store.h"
#include "file/hash.h"

namespace zeroshard {

CheckpointReader::CheckpointReader(const Directory& root, const std::string& tag)
    : directory_(root.open_directory(tag)),
      manifest_(read_manifest(root, tag)),
      index_(manifest_),
      where_(concat(root.path(), "/", tag)) {
  files_.resize(manifest_.files.size());
  for (const FileRecord& file : manifest_.files) {
    const int64_t size = directory_.file_size(file.name);
    if (size != file.size)
      throw IoError(concat(where_, "/", file.name, " has ", size, " bytes, and had ", file.size, " when it was saved"));
  }
}

FileReader& CheckpointReader::open(size_t file) {
  if (!files_[file]) {
    const FileRecord& record = manifest_.files[file];
    FileReader opened(directory_, record.name);
    std::vector<std::byte> header(size_t(record.header_bytes));
    opened.read(0, header.data(), record.header_bytes);
    if (hash_bytes(header.data(), record.header_bytes) != record.header_hash)
      throw IoError(concat(where_, "/", record.name, " is damaged: the checksum of its header differs"));
    files_[file] = std::move(opened);
  }
  return *files_[file];
}

void CheckpointReader::read(const TensorRecord& tensor, Range elements, std::string_view dtype, void* out) {
  const int64_t width = dtype_bytes(tensor.dtype), out_width = dtype_bytes(dtype);
  const int64_t piece_elements = kPieceBytes / width;
  for (const FileSlice& slice : tensor.slices) {
    const Range common = intersect(slice.elements, elements);
    if (common.size() == 0) continue;
    FileReader& file = open(slice.file);
    for (int64_t at = common.begin; at < common.end;) {
      const int64_t piece = (at - slice.elements.begin) / piece_elements;
      const int64_t begin = slice.elements.begin + piece * piece_elements;
      const int64_t end = std::min(begin + piece_elements, slice.elements.end);
      const int64_t bytes = (end - begin) * width, offset = slice.offset + piece * kPieceBytes;
      auto* const target = static_cast<std::byte*>(out) + (at - elements.begin) * out_width;
      const int64_t stop = std::min(end, common.end);
      // A piece that is wanted as it is goes straight to its place.
      const bool direct = dtype == tensor.dtype && at == begin && stop == end;
      if (!direct) scratch_.resize(size_t(std::max(bytes, int64_t(scratch_.size()))));
      std::byte* const read = direct ? target : scratch_.data();
      file.read(offset, read, bytes);
      if (hash_bytes(read, bytes) != slice.hashes[size_t(piece)])
        throw IoError(concat(where_, "/", manifest_.files[slice.file].name, " is damaged: the checksum of '",
                             tensor.name, "' (", tensor.kind, "), elements ", begin, " to ", end, ", differs"));
      if (!direct) convert(read + (at - begin) * width, tensor.dtype, target, dtype, stop - at);
      at = stop;
    }
  }
}

std::vector<std::string> CheckpointReader::verify() {
  std::vector<std::string> wrong;
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      wrong.emplace_back(error.what());
    }
  };
  for (size_t file = 0; file < files_.size(); ++file) attempt([&] { open(file); });
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  for (const TensorRecord& tensor : manifest_.tensors) {
    const int64_t step = kPieceBytes / dtype_bytes(tensor.dtype);
    for (const FileSlice& slice : tensor.slices) {
      for (int64_t at = slice.elements.begin; at < slice.elements.end; at += step) {
        const Range range{at, std::min(at + step, slice.elements.end)};
        attempt([&] { read(tensor, range, tensor.dtype, piece.data()); });
      }
    }
  }
  std::sort(wrong.begin(), wrong.end());
  wrong.erase(std::unique(wrong.begin(), wrong.end()), wrong.end());
  return wrong;
}

}  // namespace zeroshard
