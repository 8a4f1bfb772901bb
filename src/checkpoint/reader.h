#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "file/durable.h"

namespace zeroshard {

// The checkpoint's own tensors, piece by piece: for export and verification. Not collective.
class CheckpointReader {
 public:
  // Throws ValueError or IoError unless the manifest is sound and the files have their sizes.
  CheckpointReader(const Directory& root, const std::string& tag);
  const Manifest& manifest() const { return manifest_; }
  const TensorIndex& index() const { return index_; }

  // Elements of a tensor into `out`, as `dtype`. Throws IoError naming file and tensor when a checksum differs.
  void read(const TensorRecord& tensor, Range elements, std::string_view dtype, void* out);
  // Checks every byte of every file. Returns what is wrong, one line per file or tensor; empty: nothing.
  std::vector<std::string> verify();

 private:
  FileReader& open(size_t file);

  Directory directory_;
  Manifest manifest_;
  TensorIndex index_;
  std::string where_;
  std::vector<std::optional<FileReader>> files_;  // opened when first used
  std::vector<std::byte> scratch_;
};

}  // namespace zeroshard
