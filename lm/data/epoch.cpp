#include "data/epoch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/align.h"
#include "base/check.h"
#include "data/shuffle.h"

namespace zeroshard {
namespace {

constexpr uint32_t kMaxRows = std::numeric_limits<uint32_t>::max();

void check_rows(int64_t rows, int64_t length) {
  ZS_CHECK(rows < kMaxRows, "an epoch would have ", rows, " rows of ", length,
           " tokens, at most 2^32 - 2 are possible: make rows longer, or train on fewer files at a time");
}

}  // namespace

StreamEpoch::StreamEpoch(const Corpus& corpus, const DatasetOptions& options, int64_t epoch)
    : length_(options.length), rows_(ceil_div(corpus.tokens(), options.length)) {
  check_rows(rows_, length_);
  order_.resize(size_t(corpus.members()));
  std::iota(order_.begin(), order_.end(), 0U);
  if (options.shuffle) {
    shuffle(std::span(order_), generator(options.seed, epoch, Purpose::kDocuments));
    row_order_.resize(size_t(rows_));
    std::iota(row_order_.begin(), row_order_.end(), 0U);
    shuffle(std::span(row_order_), generator(options.seed, epoch, Purpose::kRows));
  }
  ends_.reserve(order_.size());
  int64_t end = 0;
  for (const uint32_t member : order_) ends_.push_back(end += corpus.length(member));
}

std::vector<Piece> StreamEpoch::row(int64_t index) const {
  if (!row_order_.empty()) index = row_order_[size_t(index)];
  int64_t at = index * length_;
  const int64_t end = std::min(at + length_, ends_.back());
  std::vector<Piece> pieces;
  size_t slot = size_t(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
  for (; at < end; ++slot) {
    const int64_t member_begin = slot == 0 ? 0 : ends_[slot - 1];
    const int64_t count = std::min(ends_[slot], end) - at;
    pieces.push_back({order_[slot], at - member_begin, count});
    at += count;
  }
  return pieces;
}

PieceEpoch::PieceEpoch(const Corpus& corpus, const DatasetOptions& options, int64_t epoch)
    : corpus_(corpus), length_(options.length) {
  int64_t count = 0;
  for (uint32_t member = 0; member < corpus.members(); ++member) count += ceil_div(corpus.length(member), length_);
  check_rows(count, length_);  // `count` is the number of parts, and there are at most as many rows
  parts_.reserve(size_t(count));
  for (uint32_t member = 0; member < corpus.members(); ++member)
    for (int64_t number = ceil_div(corpus.length(member), length_), i = 0; i < number; ++i)
      parts_.push_back({member, uint32_t(i)});
  if (options.shuffle) shuffle(std::span(parts_), generator(options.seed, epoch, Purpose::kDocuments));
  std::vector<uint32_t> row_of(parts_.size());
  std::iota(row_of.begin(), row_of.end(), 0U);
  if (options.packing == DatasetOptions::Packing::kWhole) row_of = pack();
  const int64_t rows = int64_t(*std::max_element(row_of.begin(), row_of.end())) + 1;
  group(row_of, rows);
}

int64_t PieceEpoch::length_of(const Part& part) const {
  return std::min(length_, corpus_.length(part.member) - int64_t(part.number) * length_);
}

// Returns the row of each part, chosen by best-fit decreasing over the whole epoch. This method places parts from the
// longest to the shortest, each into the fullest row that has enough room. The number of rows depends only on the
// lengths, so it is the same in every epoch. Parts of equal length are placed in the order that they have in parts_. If
// that order is shuffled, different parts share a row in each epoch.
std::vector<uint32_t> PieceEpoch::pack() const {
  std::vector<uint32_t> by_length(parts_.size()), lengths;
  std::iota(by_length.begin(), by_length.end(), 0U);
  for (const Part& part : parts_) lengths.push_back(uint32_t(length_of(part)));
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](uint32_t one, uint32_t other) { return lengths[one] > lengths[other]; });
  std::map<int64_t, std::vector<uint32_t>> open;  // the rows that are not full, by their free tokens
  std::vector<uint32_t> row_of(parts_.size());
  uint32_t rows = 0;
  for (const uint32_t part : by_length) {
    const int64_t length = lengths[part];
    const auto found = open.lower_bound(length);
    int64_t room = length_;
    if (found == open.end()) {
      row_of[part] = rows++;
    } else {
      room = found->first;
      row_of[part] = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) open.erase(found);
    }
    if (room > length) open[room - length].push_back(row_of[part]);
  }
  return row_of;
}

// Numbers the rows anew, in the order of their first parts in parts_. Then sorts parts_ by the new number of the row,
// and fills row_begins_. The parts of a row keep their order.
void PieceEpoch::group(const std::vector<uint32_t>& row_of, int64_t rows) {
  const auto count = size_t(rows);
  std::vector<uint32_t> place(count, kMaxRows), counts(count + 1);
  uint32_t next = 0;
  for (const uint32_t row : row_of) {
    if (place[row] == kMaxRows) place[row] = next++;
    ++counts[place[row] + 1];
  }
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  row_begins_ = counts;
  std::vector<Part> grouped(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) grouped[counts[place[row_of[i]]]++] = parts_[i];
  parts_ = std::move(grouped);
}

std::vector<Piece> PieceEpoch::row(int64_t index) const {
  std::vector<Piece> pieces;
  for (uint32_t i = row_begins_[size_t(index)]; i < row_begins_[size_t(index) + 1]; ++i) {
    corpus_.check_whole(parts_[i].member);
    pieces.push_back({parts_[i].member, int64_t(parts_[i].number) * length_, length_of(parts_[i])});
  }
  return pieces;
}

}  // namespace zeroshard
