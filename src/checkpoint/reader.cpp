#include "checkpoint/reader.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "checkpoint/convert.h"
#include "checkpoint/store.h"
#include "file/hash.h"
#include "file/read_ahead.h"

namespace zeroshard {
namespace {

// Two pieces that are at most this many bytes apart are read in one read, with the gap between them, because that is
// cheaper than a second read. Such a read has at most kPieceBytes.
constexpr int64_t kLargestGap = int64_t{64} << 10;

}  // namespace

// The bytes that one checksum covers.
struct CheckpointReader::Piece {
  size_t file = 0;
  int64_t offset = 0, bytes = 0;
  uint64_t hash = 0;
  const TensorRecord* tensor = nullptr;  // null: the file's header
  Range elements{};                      // elements of the tensor in this piece
  Range wanted{};                        // the part of `elements` that goes to `out`, as `dtype`
  std::string_view dtype{};
  std::byte* out = nullptr;
  WantedElements::Elsewhere elsewhere{};  // where the wanted elements go if `out` is null; see WantedElements
};

CheckpointReader::CheckpointReader(const Directory& root, const std::string& tag)
    : directory_(root.open_directory(tag)),
      manifest_(read_manifest(root, tag)),
      index_(manifest_),
      where_(concat(root.path(), "/", tag)),
      header_checked_(manifest_.files.size(), false) {
  for (const FileRecord& file : manifest_.files) {
    const int64_t size = directory_.file_size(file.name);
    if (size != file.size)
      throw IoError(concat(where_, "/", file.name, " has ", size, " bytes, and had ", file.size, " when it was saved"));
  }
}

void CheckpointReader::read(std::span<const WantedElements> wanted, Uploader* uploader) {
  uploader_ = uploader;
  std::vector<Piece> pieces;
  for (const WantedElements& each : wanted) add_pieces(each, pieces);
  std::vector<bool> used(manifest_.files.size(), false);
  for (const Piece& piece : pieces) used[piece.file] = true;
  add_headers(used, pieces);
  read_pieces(std::move(pieces), [](const IoError& error) { throw error; });
}

void CheckpointReader::read(const TensorRecord& tensor, Range elements, std::string_view dtype, void* out) {
  read(std::array{WantedElements{&tensor, elements, dtype, out}});
}

std::vector<std::string> CheckpointReader::verify() {
  std::fill(header_checked_.begin(), header_checked_.end(), false);
  std::vector<Piece> pieces;
  for (const TensorRecord& tensor : manifest_.tensors)
    add_pieces({&tensor, {0, tensor.numel()}, tensor.dtype, nullptr}, pieces);
  add_headers(std::vector<bool>(manifest_.files.size(), true), pieces);
  std::vector<std::string> wrong;
  read_pieces(std::move(pieces), [&](const IoError& error) { wrong.emplace_back(error.what()); });
  std::sort(wrong.begin(), wrong.end());
  wrong.erase(std::unique(wrong.begin(), wrong.end()), wrong.end());
  return wrong;
}

void CheckpointReader::add_pieces(const WantedElements& wanted, std::vector<Piece>& pieces) const {
  const TensorRecord& tensor = *wanted.tensor;
  const int64_t width = dtype_bytes(tensor.dtype), out_width = dtype_bytes(wanted.dtype);
  const int64_t step = kPieceBytes / width;
  for (const FileSlice& slice : tensor.slices) {
    const Range common = intersect(slice.elements, wanted.elements);
    if (common.size() == 0) continue;
    const int64_t first = (common.begin - slice.elements.begin) / step;
    for (int64_t i = first; slice.elements.begin + i * step < common.end; ++i) {
      const int64_t begin = slice.elements.begin + i * step;
      Piece piece{.file = slice.file, .hash = slice.hashes[size_t(i)], .tensor = &tensor, .dtype = wanted.dtype};
      piece.elements = {begin, std::min(begin + step, slice.elements.end)};
      piece.offset = slice.offset + i * kPieceBytes;
      piece.bytes = piece.elements.size() * width;
      piece.wanted = intersect(piece.elements, common);
      const int64_t skipped_bytes = (piece.wanted.begin - wanted.elements.begin) * out_width;
      if (wanted.out != nullptr) piece.out = static_cast<std::byte*>(wanted.out) + skipped_bytes;
      piece.elsewhere = {wanted.elsewhere.data, wanted.elsewhere.offset + skipped_bytes};
      pieces.push_back(piece);
    }
  }
}

void CheckpointReader::add_headers(const std::vector<bool>& files, std::vector<Piece>& pieces) const {
  for (size_t i = 0; i < files.size(); ++i) {
    const FileRecord& file = manifest_.files[i];
    if (files[i] && !header_checked_[i])
      pieces.push_back({.file = i, .bytes = file.header_bytes, .hash = file.header_hash});
  }
}

void CheckpointReader::read_pieces(std::vector<Piece> pieces, const OnDamage& on_damage) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  std::vector<ReadAhead::Stretch> stretches;
  std::vector<size_t> ends;  // for each stretch: the index after its last piece
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const int64_t end = piece.offset + piece.bytes;
    ReadAhead::Stretch* const last = stretches.empty() ? nullptr : &stretches.back();
    if (last != nullptr && piece.file == pieces[i - 1].file &&
        piece.offset <= last->offset + last->bytes + kLargestGap &&
        end - last->offset <= std::max(kPieceBytes, last->bytes)) {
      last->bytes = std::max(last->bytes, end - last->offset);
      ends.back() = i + 1;
    } else {
      stretches.push_back({manifest_.files[piece.file].name, piece.offset, piece.bytes});
      ends.push_back(i + 1);
    }
  }
  const auto attempt = [&](const auto& step) {
    try {
      step();
      return true;
    } catch (const IoError& error) {
      on_damage(error);
      return false;
    }
  };
  ReadAhead ahead(directory_, stretches);
  for (size_t i = 0, piece = 0; i < stretches.size(); ++i) {
    std::span<const std::byte> bytes;
    if (!attempt([&] { bytes = ahead.next(); })) piece = ends[i];
    for (; piece < ends[i]; ++piece)
      attempt([&] { take(pieces[piece], bytes.data() + (pieces[piece].offset - stretches[i].offset)); });
  }
}

void CheckpointReader::take(const Piece& piece, const std::byte* bytes) {
  const bool whole = hash_bytes(bytes, piece.bytes) == piece.hash;
  const std::string& name = manifest_.files[piece.file].name;
  if (piece.tensor == nullptr) {
    if (!whole) throw IoError(concat(where_, "/", name, " is damaged: the checksum of its header differs"));
    header_checked_[piece.file] = true;
    return;
  }
  const TensorRecord& tensor = *piece.tensor;
  if (!whole)
    throw IoError(concat(where_, "/", name, " is damaged: the checksum of '", tensor.name, "' (", tensor.kind,
                         "), elements ", piece.elements.begin, " to ", piece.elements.end, ", differs"));
  const int64_t skipped = (piece.wanted.begin - piece.elements.begin) * dtype_bytes(tensor.dtype);
  if (piece.out != nullptr)
    convert(bytes + skipped, tensor.dtype, piece.out, piece.dtype, piece.wanted.size());
  else if (piece.elsewhere.data)
    upload(piece, bytes + skipped);
}

void CheckpointReader::upload(const Piece& piece, const std::byte* from) {
  const std::string_view dtype = piece.tensor->dtype;
  const int64_t width = dtype_bytes(dtype), out_width = dtype_bytes(piece.dtype);
  const int64_t step = uploader_->max_bytes() / out_width;
  for (int64_t at = 0; at < piece.wanted.size(); at += step) {
    const int64_t count = std::min(step, piece.wanted.size() - at);
    convert(from + at * width, dtype, uploader_->place(count * out_width), piece.dtype, count);
    uploader_->send(piece.elsewhere.data, piece.elsewhere.offset + at * out_width, count * out_width);
  }
}

}  // namespace zeroshard
