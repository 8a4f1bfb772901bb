#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Makes rows of tokens for training from token files (docs/token-files.md).
namespace zeroshard {

// The target of a position at which the model learns nothing. LibTorch's losses ignore this value by default.
inline constexpr int32_t kNoTarget = -100;

// The input and the targets of a language model. Each vector has DatasetOptions::length entries.
struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;    // the token after each token, or kNoTarget
  std::vector<int32_t> documents;  // 1, 2, ... in their order in the row; 0: padding
};

struct DatasetOptions {
  // kStream: the documents of an epoch form one stream, which is cut where a row is full. kWhole: a document is cut
  // only if it is longer than a row, and several short documents share a row. kSeparate: each document gets a row of
  // its own, or several rows if it is longer than a row.
  enum class Packing : uint8_t { kStream, kWhole, kSeparate };
  enum class Part : uint8_t { kTraining, kValidation };

  int64_t length = 1024;  // length of a row in tokens
  Packing packing = Packing::kStream;
  Part part = Part::kTraining;
  // The share of documents that belong to the validation part. The seed decides which documents these are. If the share
  // is less than one document, the validation part is instead this share of the tokens of each document, taken from the
  // document's end.
  double validation_share = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  int64_t vocab_size = 0;  // every id must be below this; 0: not checked
  // The id of the token that ends a document in token files of other programs, which have no index of documents. Unset:
  // each such file is one document.
  std::optional<int32_t> eos;
};

// An endless sequence of rows, epoch after epoch. Each epoch has every token of the chosen part of the files once. The
// order depends only on the seed and the number of the epoch; without `shuffle`, all epochs have the same order. Row
// `i` is the same for any number of ranks, so a run can continue from a row number. The files stay mapped, and row()
// copies only the tokens of its row. Any number of threads may call row().
class Dataset {
 public:
  // Throws an IoError or ValueError that names a file that is not a token file, is damaged, is empty or has ids outside
  // the vocabulary. There is one exception: if a file of another program has 64 MiB or more, only row() checks its ids,
  // when it reads them. Throws ValueError for invalid options, and for a part without tokens.
  Dataset(const std::vector<std::string>& files, const DatasetOptions& options);
  ~Dataset();

  TokenRow row(int64_t number);
  int64_t rows_in_epoch(int64_t epoch);
  int64_t epoch_of(int64_t number);
  int64_t tokens() const;  // tokens in this part
  int64_t documents() const;
  // Returns 16 hexadecimal digits that identify the tokens and the options that determine the rows.
  const std::string& digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
