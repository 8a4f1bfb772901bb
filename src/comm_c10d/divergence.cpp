#include "comm_c10d/divergence.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/format.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPatience(200);
constexpr std::chrono::milliseconds kFarewell(3000);

std::string key_of(int rank) {
  return concat("zeroshard/calls/", rank);
}

std::string found_key_of(int rank) {
  return concat("zeroshard/found/", rank);
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
std::shared_ptr<Divergence::Talk> Divergence::Talk::start(std::function<void(Talk&)> body) {
  auto talk = std::make_shared<Talk>();
  const auto run = [talk, body = std::move(body)] {
    try {
      body(*talk);
    } catch (const std::exception&) {  // the store's host is gone: others notice that better
    }
    const std::scoped_lock lock(talk->mutex_);
    talk->over_ = true;
    talk->changed_.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    return nullptr;  // the process may have no more threads
  }
  return talk;
}

bool Divergence::Talk::wait_for(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return over_; });
}

void Divergence::start_exchange() {
  exchange_ = Talk::start([store = store_, own = told_ == last_ ? std::string() : table(), rank = rank_,
                           world_size = world_size_](Talk& talk) {
    if (!own.empty()) store->set(key_of(rank), own);
    for (int peer = 0; peer < world_size; ++peer)
      if (peer != rank && store->check({key_of(peer)})) talk.theirs.emplace_back(peer, store->get_to_str(key_of(peer)));
  });
  if (exchange_) told_ = last_;
}

void Divergence::await_others() const {
  const auto talk = Talk::start([store = store_, rank = rank_, world_size = world_size_](Talk&) {
    const auto end = Clock::now() + kFarewell;
    store->set(found_key_of(rank), "");
    for (int peer = 0; peer < world_size; ++peer)
      while (!store->check({found_key_of(peer)}) && Clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  if (talk) talk->wait_for(kFarewell);
}

std::optional<std::string> Divergence::look() {
  if (!store_ || last_ == 0) return std::nullopt;
  if (!exchange_) start_exchange();
  if (!exchange_) return std::nullopt;
  const std::shared_ptr<Talk> exchange = exchange_;
  if (!exchange->wait_for(kPatience)) return std::nullopt;
  exchange_.reset();
  for (const auto& [peer, theirs] : exchange->theirs) {
    if (auto difference = compare(peer, theirs)) {
      await_others();
      return difference;
    }
  }
  return std::nullopt;
}

}  // namespace zeroshard
