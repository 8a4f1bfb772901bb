#include "comm_c10d/divergence.h"

#include <algorithm>
#include <sstream>

#include "base/format.h"

namespace zeroshard {
namespace {

std::string key_of(int rank) {
  return concat("zeroshard/calls/", rank);
}

}  // namespace

Divergence::Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

void Divergence::note(const Op& op, uint64_t hash) {
  last_ = op.seq;
  calls_[last_ % calls_.size()] = {op.seq, hash, op};
}

// One line per call, oldest first: number, hash, text.
std::string Divergence::table() const {
  std::ostringstream text;
  const uint64_t count = std::min<uint64_t>(last_, calls_.size());
  for (uint64_t seq = last_ - count + 1; seq <= last_; ++seq) {
    const Call& call = calls_[seq % calls_.size()];
    text << call.seq << ' ' << call.hash << ' ' << call.op.text() << '\n';
  }
  return text.str();
}

// The first call that both know and in which their histories differ. Histories that differed before what both know
// differ in every call: then the first known one is named.
std::optional<std::string> Divergence::compare(int peer, const std::string& theirs) const {
  std::istringstream lines(theirs);
  uint64_t seq = 0, hash = 0;
  std::string text;
  while (lines >> seq >> hash && std::getline(lines.ignore(), text)) {
    const Call& own = calls_[seq % calls_.size()];
    if (own.seq != seq || own.hash == hash) continue;
    const std::string mine = concat("rank ", rank_, " called ", own.op.text());
    const std::string other = concat("rank ", peer, " called ", text);
    return concat("ranks disagree: in collective #", seq, " ", rank_ < peer ? mine : other, ", ",
                  rank_ < peer ? other : mine);
  }
  return std::nullopt;
}

std::optional<std::string> Divergence::look() {
  if (!store_ || last_ == 0) return std::nullopt;
  try {
    if (told_ != last_) store_->set(key_of(rank_), table());
    told_ = last_;
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_ || !store_->check({key_of(peer)})) continue;
      if (auto difference = compare(peer, store_->get_to_str(key_of(peer)))) return difference;
    }
  } catch (const std::exception&) {  // the store's host is gone: others notice that better
  }
  return std::nullopt;
}

}  // namespace zeroshard
