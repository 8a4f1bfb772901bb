#include "data/corpus.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "data/shuffle.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

// The constructor checks all ids of a file of another program if the file is smaller than this.
constexpr int64_t kScanBytes = int64_t{64} << 20;
constexpr int64_t kAllIds = INT64_C(1) << 31;  // limit if there is no vocabulary size

// Returns the limit below which all ids of the file must be.
int64_t limit_of(const TokenFileInfo& info, int64_t vocab_size) {
  return std::min(vocab_size > 0 ? vocab_size : kAllIds, info.vocab_size > 0 ? info.vocab_size : kAllIds);
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& files, const DatasetOptions& options) : options_(options) {
  ZS_CHECK(!files.empty(), "there are no files of tokens to read");
  ZS_CHECK(options.validation_share >= 0 && options.validation_share < 1,
           "validation_share must be at least 0 and below 1, got ", options.validation_share);
  ZS_CHECK(options.vocab_size >= 0, "vocab_size must not be negative, got ", options.vocab_size);
  open(files);
  choose_members();
  const bool training = options.part == DatasetOptions::Part::kTraining;
  ZS_CHECK(!members_.empty(), "the ", training ? "training" : "validation", " part of ", files.front(),
           files.size() > 1 ? " and the other files" : "", " has no tokens: its ", first_document_.back(),
           " document(s) are too few or too short for validation_share ", options.validation_share);
  for (uint32_t member = 0; member < members_.size(); ++member) tokens_ += length(member);
}

void Corpus::open(const std::vector<std::string>& files) {
  std::vector<uint64_t> identities;
  int64_t documents = 0;
  for (const std::string& path : files) {
    const TokenFile& file = files_.emplace_back(path, options_.eos);
    const TokenFileInfo& info = file.info();
    if (info.max_id >= 0 || info.bytes < kScanBytes) file.check_ids(limit_of(info, options_.vocab_size));
    first_document_.push_back(documents);
    documents += info.documents;
    identities.push_back(file.identity());
  }
  ZS_CHECK(documents <= std::numeric_limits<uint32_t>::max(), "the files have ", documents,
           " documents together, at most 2^32 - 1 are possible: train on fewer files at a time");
  first_document_.push_back(documents);
  identity_ = hash_bytes(identities.data(), int64_t(identities.size() * sizeof(uint64_t)));
}

void Corpus::choose_members() {
  const int64_t documents = first_document_.back();
  const bool training = options_.part == DatasetOptions::Part::kTraining;
  const double wanted = options_.validation_share * double(documents);
  divided_ = wanted > 0 && wanted < 1;
  members_.resize(size_t(documents));
  std::iota(members_.begin(), members_.end(), 0U);
  if (divided_) {
    std::erase_if(members_, [&](uint32_t document) {
      const int64_t length = place_of_document(document).length, held = held_out(length);
      return (training ? length - held : held) == 0;
    });
    return;
  }
  if (wanted == 0 && !training) members_.clear();
  if (wanted == 0) return;
  const int64_t held = std::min<int64_t>(std::llround(wanted), documents - 1);
  shuffle(std::span(members_), generator(options_.seed, 0, Purpose::kSplit));
  if (training) {
    members_.erase(members_.begin(), members_.begin() + held);
  } else {
    members_.resize(size_t(held));
  }
  members_.shrink_to_fit();
  std::sort(members_.begin(), members_.end());
}

int64_t Corpus::held_out(int64_t length) const {
  if (length < 2) return 0;
  return std::clamp<int64_t>(std::llround(options_.validation_share * double(length)), 1, length - 1);
}

void Corpus::check_whole() const {
  for (const TokenFile& file : files_) file.check_whole();
}

void Corpus::check_whole(uint32_t member) const {
  files_[file_of(members_[member])].check_whole();
}

size_t Corpus::file_of(int64_t document) const {
  const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), document);
  return size_t(after - first_document_.begin()) - 1;
}

Corpus::Place Corpus::place_of_document(int64_t document) const {
  const size_t index = file_of(document);
  const TokenFile& file = files_[index];
  const int64_t number = document - first_document_[index];
  const int64_t begin = number == 0 ? 0 : file.document_end(number - 1);
  return {&file, begin, file.document_end(number) - begin};
}

Corpus::Place Corpus::place(uint32_t member) const {
  Place place = place_of_document(members_[member]);
  if (!divided_) return place;
  const int64_t held = held_out(place.length);
  if (options_.part == DatasetOptions::Part::kTraining) return {place.file, place.begin, place.length - held};
  return {place.file, place.begin + place.length - held, held};
}

void Corpus::read(uint32_t member, int64_t begin, int64_t count, std::vector<int32_t>& ids,
                  std::vector<int32_t>& targets) const {
  check_whole(member);
  const Place at = place(member);
  const TokenFileInfo& info = at.file->info();
  const int64_t with_next = std::min(count + 1, at.length - begin);
  const size_t old = ids.size();
  ids.resize(old + size_t(with_next));
  at.file->read(at.begin + begin, std::span(ids).subspan(old), limit_of(info, options_.vocab_size));
  for (int64_t i = 0; i < count; ++i) {
    const bool learned = i + 1 < with_next && (!info.masked || at.file->learned(at.begin + begin + i + 1));
    targets.push_back(learned ? ids[old + size_t(i) + 1] : kNoTarget);
  }
  ids.resize(old + size_t(count));
}

}  // namespace zeroshard
