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

// Elements of a tensor of the checkpoint, and where they go, converted to `dtype`.
struct WantedElements {
  // Not in the host's memory: from the byte `offset` of `data` on.
  struct Elsewhere {
    std::shared_ptr<SliceData> data;
    int64_t offset = 0;
  };

  const TensorRecord* tensor = nullptr;
  Range elements;
  std::string_view dtype;
  void* out = nullptr;
  Elsewhere elsewhere = {};  // if `out` is null
};

// The checkpoint's own tensors, each byte checked before it is used. Not collective.
class CheckpointReader {
 public:
  // Throws ValueError or IoError unless the manifest is sound and the files have their sizes.
  CheckpointReader(const Directory& root, const std::string& tag);
  const Manifest& manifest() const { return manifest_; }
  const TensorIndex& index() const { return index_; }

  // In the order of the files, in long reads: best all at once. Beside what it fills it needs 32 MiB. Throws IoError
  // naming file and tensor when a checksum differs. `uploader` takes what goes elsewhere than to the host's memory.
  void read(std::span<const WantedElements> wanted, Uploader* uploader = nullptr);
  void read(const TensorRecord& tensor, Range elements, std::string_view dtype, void* out);
  // Checks every byte of every file. Returns what is wrong, one line per file or tensor; empty: nothing.
  std::vector<std::string> verify();

 private:
  struct Piece;
  using OnDamage = std::function<void(const IoError&)>;

  void add_pieces(const WantedElements& wanted, std::vector<Piece>& pieces) const;
  void read_pieces(std::vector<Piece> pieces, const OnDamage& on_damage);
  void take(const Piece& piece, const std::byte* bytes);
  void upload(const Piece& piece, const std::byte* from);

  Directory directory_;
  Manifest manifest_;
  TensorIndex index_;
  std::string where_;
  std::vector<bool> header_checked_;  // of each file
  Uploader* uploader_ = nullptr;      // during read()
};

}  // namespace zeroshard
