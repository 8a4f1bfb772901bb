#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Rows of tokens for training, out of files of tokens (docs/token-files.md).
namespace zeroshard {

// In the place of a target: nothing is to be learned there. The value that LibTorch's losses ignore by default.
inline constexpr int32_t kNoTarget = -100;

// What a language model sees and predicts. Each has DatasetOptions::length entries.
struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;    // the token that follows, or kNoTarget
  std::vector<int32_t> documents;  // 1, 2, ... in the order of the row; 0: padding
};

struct DatasetOptions {
  // kStream: the documents of an epoch behind each other, cut into rows wherever a row is full. kWhole: documents are
  // cut only when they are longer than a row, and several that fit share one. kSeparate: a row per document or piece.
  enum class Packing : uint8_t { kStream, kWhole, kSeparate };
  enum class Part : uint8_t { kTraining, kValidation };

  int64_t length = 1024;  // of a row, in tokens
  Packing packing = Packing::kStream;
  Part part = Part::kTraining;
  // Of the documents, chosen by the seed; where there are too few for that, of the tokens of each, at its end.
  double validation_share = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  int64_t vocab_size = 0;  // every id must be smaller; 0: not checked
  // In files of other programs, which have no index of documents: a document ends after this id. Unset: with its file.
  std::optional<int32_t> eos;
};

// One of an endless sequence of rows: epoch after epoch, each with every token of the files once, in an order of its
// own that depends on (seed, epoch) alone. Whatever the number of ranks, row `i` is the same; a run goes on by its
// number. Files stay mapped; nothing is copied before it is asked for. Safe for concurrent calls of row().
class Dataset {
 public:
  // Throws IoError or ValueError, naming the file: it is no token file, damaged, empty, has ids past the vocabulary.
  Dataset(const std::vector<std::string>& files, const DatasetOptions& options);
  ~Dataset();

  TokenRow row(int64_t number);
  int64_t rows_in_epoch(int64_t epoch);
  int64_t epoch_of(int64_t number);
  int64_t tokens() const;  // of this part
  int64_t documents() const;
  // Identifies the tokens and the options that decide the rows. 16 hexadecimal digits.
  const std::string& digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
