#include <array>
#include <cstdio>
#include <mutex>

#include "base/check.h"
#include "data/corpus.h"
#include "data/epoch.h"
#include "file/hash.h"
#include "zeroshard/data.h"

namespace zeroshard {
namespace {

const DatasetOptions& checked(const DatasetOptions& options) {
  constexpr int64_t kMaxLength = 1 << 30;
  ZS_CHECK(options.length >= 1 && options.length <= kMaxLength, "the length of a row must be between 1 and ",
           kMaxLength, ", got ", options.length);
  return options;
}

std::string digest_of(const Corpus& corpus, const DatasetOptions& options) {
  const std::array<uint64_t, 8> parts{corpus.identity(),
                                      uint64_t(options.length),
                                      uint64_t(options.packing),
                                      uint64_t(options.part),
                                      std::bit_cast<uint64_t>(options.validation_share + 0.0),  // turns -0.0 to 0.0
                                      uint64_t(options.shuffle),
                                      options.seed,
                                      options.eos ? uint64_t(uint32_t(*options.eos)) : ~uint64_t{0}};
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(hash_bytes(parts.data(), sizeof(parts))));
  return text.data();
}

}  // namespace

struct Dataset::Impl {
  Impl(const std::vector<std::string>& files, const DatasetOptions& wanted)
      : options(checked(wanted)),
        corpus(files, options),
        digest(digest_of(corpus, options)),
        rows_per_epoch(epoch(0)->rows()) {}

  // Returns the epoch with this number. Without shuffling, all epochs are alike, and epoch 0 stands for each of them.
  // Keeps the two epochs that were used last, because near the end of an epoch some threads still read its rows while
  // others already read those of the next epoch.
  std::shared_ptr<const Epoch> epoch(int64_t number) {
    if (!options.shuffle) number = 0;
    const std::lock_guard lock(mutex);
    for (Kept& kept : recent) {
      if (!kept.epoch || kept.number != number) continue;
      if (&kept != &recent[0]) std::swap(recent[0], recent[1]);
      return recent[0].epoch;
    }
    recent[1] = {};  // frees the older epoch before the new one is made
    corpus.check_whole();
    std::shared_ptr<const Epoch> made;
    if (options.packing == DatasetOptions::Packing::kStream) {
      made = std::make_shared<StreamEpoch>(corpus, options, number);
    } else {
      made = std::make_shared<PieceEpoch>(corpus, options, number);
    }
    recent[1] = {number, made};
    std::swap(recent[0], recent[1]);
    return made;
  }

  struct Kept {
    int64_t number = 0;
    std::shared_ptr<const Epoch> epoch;
  };

  const DatasetOptions options;
  const Corpus corpus;
  const std::string digest;
  std::mutex mutex;
  std::array<Kept, 2> recent;  // most recently used first
  const int64_t rows_per_epoch;
};

Dataset::Dataset(const std::vector<std::string>& files, const DatasetOptions& options)
    : impl_(std::make_unique<Impl>(files, options)) {}

Dataset::~Dataset() = default;

TokenRow Dataset::row(int64_t number) {
  const int64_t epoch = epoch_of(number), index = number % impl_->rows_per_epoch;
  const auto length = size_t(impl_->options.length);
  TokenRow row;
  row.ids.reserve(length + 1);
  row.targets.reserve(length);
  row.documents.reserve(length);
  int32_t document = 0;
  for (const Piece& piece : impl_->epoch(epoch)->row(index)) {
    impl_->corpus.read(piece.member, piece.begin, piece.count, row.ids, row.targets);
    row.documents.resize(row.ids.size(), ++document);
  }
  row.ids.resize(length, 0);
  row.targets.resize(length, kNoTarget);
  row.documents.resize(length, 0);
  return row;
}

int64_t Dataset::rows_in_epoch(int64_t epoch) {
  ZS_CHECK(epoch >= 0, "the number of an epoch must not be negative, got ", epoch);
  return impl_->rows_per_epoch;
}

int64_t Dataset::epoch_of(int64_t number) {
  ZS_CHECK(number >= 0, "the number of a row must not be negative, got ", number);
  return number / impl_->rows_per_epoch;
}

int64_t Dataset::tokens() const {
  return impl_->corpus.tokens();
}

int64_t Dataset::documents() const {
  return impl_->corpus.members();
}

const std::string& Dataset::digest() const {
  return impl_->digest;
}

}  // namespace zeroshard
