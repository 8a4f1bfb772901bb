#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/uploader.h"
#include "file/durable.h"
#include "zeroshard/error.h"

namespace zeroshard {

// Elements of a tensor of the checkpoint, and the memory to which they are read. The elements are converted to `dtype`.
struct WantedElements {
  // A target that is not in host memory: the bytes of `data` from `offset` on.
  struct Elsewhere {
    std::shared_ptr<SliceData> data;
    int64_t offset = 0;
  };

  const TensorRecord* tensor = nullptr;
  Range elements;
  std::string_view dtype;
  void* out = nullptr;
  Elsewhere elsewhere = {};  // used if `out` is null; if both are null, the elements are only checked
};

// Reads the tensors of one checkpoint. The checksum of each piece is checked before the piece is used. Not collective.
class CheckpointReader {
 public:
  // Throws ValueError or IoError if the manifest is not sound, or if a file does not have the size that the manifest
  // says.
  CheckpointReader(const Directory& root, const std::string& tag);
  const Manifest& manifest() const { return manifest_; }
  const TensorIndex& index() const { return index_; }

  // Reads the files in order, in long reads, so a caller should request everything in one call. Needs 32 MiB in
  // addition to the memory that it fills. `uploader` fills the targets that are not in host memory, and may be null if
  // there are none. After read(), the caller must call Uploader::finish(). Throws IoError if a file cannot be read, or
  // if a checksum differs. The message names the file. If the checksum of elements differs, it also names the tensor.
  // Throws ValueError if elements cannot be converted.
  void read(std::span<const WantedElements> wanted, Uploader* uploader = nullptr);
  void read(const TensorRecord& tensor, Range elements, std::string_view dtype, void* out);
  // Checks the headers of all files and the elements of all tensors. Returns one line for each damaged header or piece
  // and for each failed read, sorted.
  std::vector<std::string> verify();

 private:
  struct Piece;
  using OnDamage = std::function<void(const IoError&)>;

  void add_pieces(const WantedElements& wanted, std::vector<Piece>& pieces) const;
  // Adds the headers of the files whose entry in `files` is true, except those that were checked before.
  void add_headers(const std::vector<bool>& files, std::vector<Piece>& pieces) const;
  void read_pieces(std::vector<Piece> pieces, const OnDamage& on_damage);
  void take(const Piece& piece, const std::byte* bytes);
  void upload(const Piece& piece, const std::byte* from);

  Directory directory_;
  Manifest manifest_;
  TensorIndex index_;
  std::string where_;
  std::vector<bool> header_checked_;  // for each file: whether its header was read and is whole
  Uploader* uploader_ = nullptr;      // of the last read()
};

}  // namespace zeroshard
