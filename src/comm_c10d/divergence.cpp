#include "comm_c10d/divergence.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/format.h"

namespace zeroshard {
namespace {

constexpr std::chrono::milliseconds kPatience(200);

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

// On a thread of its own, which is left behind when the store does not answer: its host may be stopped.
void Divergence::start_exchange() {
  exchange_ = std::make_shared<Exchange>();
  const auto run = [exchange = exchange_, store = store_, own = told_ == last_ ? std::string() : table(), rank = rank_,
                    world_size = world_size_] {
    std::vector<std::pair<int, std::string>> theirs;
    try {
      if (!own.empty()) store->set(key_of(rank), own);
      for (int peer = 0; peer < world_size; ++peer)
        if (peer != rank && store->check({key_of(peer)})) theirs.emplace_back(peer, store->get_to_str(key_of(peer)));
    } catch (const std::exception&) {  // the store's host is gone: others notice that better
    }
    const std::scoped_lock lock(exchange->mutex);
    exchange->theirs = std::move(theirs);
    exchange->done = true;
    exchange->changed.notify_all();
  };
  told_ = last_;
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    exchange_.reset();  // the process may have no more threads
    told_ = 0;
  }
}

std::optional<std::string> Divergence::look() {
  if (!store_ || last_ == 0) return std::nullopt;
  if (!exchange_) start_exchange();
  if (!exchange_) return std::nullopt;
  const std::shared_ptr<Exchange> exchange = exchange_;
  std::unique_lock lock(exchange->mutex);
  if (!exchange->changed.wait_for(lock, kPatience, [&] { return exchange->done; })) return std::nullopt;
  exchange_.reset();
  for (const auto& [peer, theirs] : exchange->theirs)
    if (auto difference = compare(peer, theirs)) return difference;
  return std::nullopt;
}

}  // namespace zeroshard
