#pragma once
#include <cstdint>
#include <vector>

#include "data/corpus.h"

namespace zeroshard {

// Consecutive tokens of one member of the Corpus, which lie together in one row. `begin` counts from the beginning of
// the member.
struct Piece {
  uint32_t member;
  int64_t begin, count;
};

// Assigns tokens to the rows of an epoch. The number of rows is the same in every epoch. row() returns the pieces of a
// row in their order in the row. Immutable.
class Epoch {
 public:
  virtual ~Epoch() = default;
  virtual int64_t rows() const = 0;
  virtual std::vector<Piece> row(int64_t index) const = 0;
};

// The rows of an epoch with Packing::kStream. Needs 12 bytes per member and, if rows are shuffled, 4 bytes per row.
class StreamEpoch final : public Epoch {
 public:
  StreamEpoch(const Corpus& corpus, const DatasetOptions& options, int64_t epoch);
  int64_t rows() const override { return rows_; }
  std::vector<Piece> row(int64_t index) const override;

 private:
  int64_t length_, rows_;
  std::vector<uint32_t> order_;      // the members in the order of the stream
  std::vector<int64_t> ends_;        // by index in order_: end of the member in the stream
  std::vector<uint32_t> row_order_;  // empty if rows are not shuffled
};

// The rows of an epoch with Packing::kWhole or kSeparate. Each member is cut into parts as long as a row, of which only
// the last can be shorter. With kWhole, several parts can share a row. With kSeparate, each part has its own row. Needs
// at most 12 bytes per part.
class PieceEpoch final : public Epoch {
 public:
  PieceEpoch(const Corpus& corpus, const DatasetOptions& options, int64_t epoch);
  int64_t rows() const override { return int64_t(row_begins_.size()) - 1; }
  std::vector<Piece> row(int64_t index) const override;

 private:
  struct Part {
    uint32_t member, number;  // `number` is the index of the part in its member
  };
  int64_t length_of(const Part& part) const;
  std::vector<uint32_t> pack() const;  // returns the row of each part
  void group(const std::vector<uint32_t>& row_of, int64_t rows);

  const Corpus& corpus_;
  int64_t length_;
  std::vector<Part> parts_;           // row by row
  std::vector<uint32_t> row_begins_;  // indices in parts_: the beginning of each row, and the end of the last row
};

}  // namespace zeroshard
