#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/shard_layout.h"

// The index of a checkpoint. docs/format.md describes its text.
namespace zeroshard {

// The bytes of a slice that one checksum covers. The last piece of a slice can be shorter.
inline constexpr int64_t kPieceBytes = int64_t{16} << 20;

// Returns the bytes of an element of a safetensors dtype ("F32", "BF16", "I64", "BOOL", ...). Returns 0 for an unknown
// dtype.
int64_t dtype_bytes(std::string_view dtype);

// Consecutive elements of a tensor, stored contiguously in one file.
struct FileSlice {
  size_t file = 0;               // index into Manifest::files
  Range elements;                // positions in the tensor, in row-major order
  int64_t offset = 0;            // position of the first byte in the file
  std::vector<uint64_t> hashes;  // one for each piece of kPieceBytes
};

// One state of one parameter (of kind "weight", "exp_avg", ...), a buffer, or a tensor in state that the user saves.
// The shape is that of the whole tensor.
struct TensorRecord {
  std::string name, kind, dtype;
  std::vector<std::string> aliases;  // other names of a tied parameter
  std::vector<int64_t> shape;
  bool trainable = false;
  int64_t updates = 0;            // for weights: how often the optimizer has updated them
  std::vector<FileSlice> slices;  // in order; together they cover the tensor (in a RankTable: only this rank's slices)

  int64_t numel() const;
};

struct FileRecord {
  std::string name;
  int64_t size = 0, header_bytes = 0;
  uint64_t header_hash = 0;
};

struct Manifest {
  std::string tag;  // the tag when it was saved; empty: an earlier version wrote the manifest
  int64_t step = 0;
  int64_t sequence = 0;  // commit number in its directory, from 1 on; 0: an earlier version wrote the manifest
  bool latest = true;    // whether it may be chosen as the newest checkpoint
  std::string config_digest;
  std::map<std::string, std::string> versions;
  std::string state = "{}";              // JSON: the state of the run
  std::vector<std::string> rank_states;  // JSON: the state of each rank that wrote the checkpoint
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;
  uint64_t text_hash = 0;  // hash of the text from which the manifest was parsed

  int world_size() const { return int(rank_states.size()); }
  int64_t file_bytes() const;  // sum over all files
};

// Finds tensors by name, including the other names of tied parameters. The manifest must outlive the index.
class TensorIndex {
 public:
  explicit TensorIndex(const Manifest& manifest);
  const TensorRecord* find(std::string_view name, std::string_view kind) const;  // null: no such tensor

 private:
  std::map<std::pair<std::string_view, std::string_view>, const TensorRecord*> records_;
};

std::string to_text(const Manifest& manifest);
// Returns whether `text` begins like every manifest, with the key of the checksum.
bool starts_like_manifest(std::string_view text);
// Returns the commit number (Manifest::sequence) of a manifest, or 0 if `text` contains none. The first kSequenceEnd
// bytes of the manifest are enough as `text`. The number is not verified, because only the whole text has a checksum.
inline constexpr int64_t kSequenceEnd = 128;
int64_t peek_sequence(std::string_view text);
// Parses a manifest. Earlier versions wrote names of compiled modules, which make_names_plain() changes. Throws
// ValueError if the text is damaged (wrong checksum), has another schema, or describes tensors that its files cannot
// hold. The message names `source`. It also names the tensor if the problem concerns a tensor.
Manifest parse_manifest(std::string_view text, const std::string& source);

// Describes the file that one rank wrote. Rank 0 merges the tables of all ranks into the manifest.
struct RankTable {
  FileRecord file;
  std::string state;
  std::vector<TensorRecord> tensors;  // FileSlice::file is 0
};
std::string to_text(const RankTable& table);
RankTable parse_rank_table(std::string_view text, const std::string& source);
// Adds the tables of all ranks, in rank order, to the manifest. Throws ValueError if they do not make whole
// tensors, if they contradict one another, or if a slice lies outside of its file.
void merge(std::vector<RankTable> tables, Manifest& manifest);

}  // namespace zeroshard
