#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/shard_layout.h"

// The index of a checkpoint: docs/format.md describes the text.
namespace zeroshard {

// Bytes of a slice that one checksum covers; the last piece of a slice may be shorter.
inline constexpr int64_t kPieceBytes = int64_t{16} << 20;

// Bytes per element of a safetensors dtype ("F32", "BF16", "I64", "BOOL", ...); 0 when it is not known.
int64_t dtype_bytes(std::string_view dtype);

// Consecutive elements of a tensor, as they lie in one file.
struct FileSlice {
  size_t file = 0;               // index into Manifest::files
  Range elements;                // of the tensor in row-major order
  int64_t offset = 0;            // of the first byte, from the start of the file
  std::vector<uint64_t> hashes;  // of every piece of kPieceBytes
};

// One state of one parameter (kind "weight", "exp_avg", ...), or a buffer, at its global shape.
struct TensorRecord {
  std::string name, kind, dtype;
  std::vector<std::string> aliases;  // further names of a tied parameter
  std::vector<int64_t> shape;
  bool trainable = false;
  int64_t updates = 0;            // by the optimizer so far; of weights
  std::vector<FileSlice> slices;  // in order; together they are the tensor

  int64_t numel() const;
};

struct FileRecord {
  std::string name;
  int64_t size = 0, header_bytes = 0;
  uint64_t header_hash = 0;
};

struct Manifest {
  std::string tag;  // under which it was saved; empty: written before manifests said so
  int64_t step = 0;
  int64_t sequence = 0;  // of commits to its directory, from 1 on; 0: written before there was one
  bool latest = true;    // counts when the newest checkpoint is looked for
  std::string config_digest;
  std::map<std::string, std::string> versions;
  std::string state = "{}";              // JSON: of the run
  std::vector<std::string> rank_states;  // JSON: of each rank that wrote it
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;
  uint64_t text_hash = 0;  // of the text it was parsed from

  int world_size() const { return int(rank_states.size()); }
  int64_t file_bytes() const;  // of all files
};

// Finds tensors by name, or by the further names of tied ones. The manifest outlives it.
class TensorIndex {
 public:
  explicit TensorIndex(const Manifest& manifest);
  const TensorRecord* find(std::string_view name, std::string_view kind) const;  // null: not there

 private:
  std::map<std::pair<std::string_view, std::string_view>, const TensorRecord*> records_;
};

std::string to_text(const Manifest& manifest);
// Whether `text` begins as every manifest does.
bool starts_like_manifest(std::string_view text);
// The sequence of a manifest from the first kSequenceEnd bytes of its text; 0 when they say none. Not checked: only the
// whole text has a checksum.
inline constexpr int64_t kSequenceEnd = 128;
int64_t peek_sequence(std::string_view text);
// Names are plain, because earlier versions wrote those of compiled modules. Throws ValueError, naming `source` and the
// tensor, for text that is damaged (its checksum differs), is of another schema, or describes tensors that its files
// cannot hold.
Manifest parse_manifest(std::string_view text, const std::string& source);

// What one rank wrote, on its way to the manifest.
struct RankTable {
  FileRecord file;
  std::string state;
  std::vector<TensorRecord> tensors;  // FileSlice::file is not set
};
std::string to_text(const RankTable& table);
RankTable parse_rank_table(std::string_view text, const std::string& source);
// Tables in rank order. Throws ValueError when they do not make whole tensors.
void merge(std::vector<RankTable> tables, Manifest& manifest);

}  // namespace zeroshard
