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

std::string key_of(size_t communicator, int rank) {
  return concat("zeroshard/calls/", communicator, "/", rank);
}

std::string place_key_of(int rank) {
  return concat("zeroshard/place/", rank);
}

std::string found_key_of(int rank) {
  return concat("zeroshard/found/", rank);
}

}  // namespace

Divergence::Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

size_t Divergence::add_communicator() {
  communicators_.emplace_back();
  return communicators_.size() - 1;
}

void Divergence::note(size_t communicator, const Op& op, uint64_t hash) {
  Communicator& own = communicators_[communicator];
  own.last = op.seq;
  own.calls[own.last % own.calls.size()] = {op.seq, hash, op};
}

// One line per call, oldest first: number, hash, text.
std::string Divergence::table(const Communicator& communicator) const {
  const auto& [calls, last, told] = communicator;
  std::ostringstream text;
  const uint64_t count = std::min<uint64_t>(last, calls.size());
  for (uint64_t seq = last - count + 1; seq <= last; ++seq) {
    const Call& call = calls[seq % calls.size()];
    text << call.seq << ' ' << call.hash << ' ' << call.op.text() << '\n';
  }
  return text.str();
}

// The first call that both know and in which their histories differ. Histories that differed before what both know
// differ in every call: then the first known one is named.
std::optional<std::string> Divergence::compare(const Communicator& communicator, int peer,
                                               const std::string& theirs) const {
  std::istringstream lines(theirs);
  uint64_t seq = 0, hash = 0;
  std::string text;
  while (lines >> seq >> hash && std::getline(lines.ignore(), text)) {
    const Call& own = communicator.calls[seq % communicator.calls.size()];
    if (own.seq != seq || own.hash == hash) continue;
    const std::string mine = concat("rank ", rank_, " called ", own.op.text());
    const std::string other = concat("rank ", peer, " called ", text);
    return concat("ranks disagree: in collective #", seq, " ", rank_ < peer ? mine : other, ", ",
                  rank_ < peer ? other : mine);
  }
  return std::nullopt;
}

// Communicator, number of the call, of the last calls of all communicators; text of the call.
std::string Divergence::text_of(const Place& place) {
  std::ostringstream text;
  text << place.communicator << ' ' << place.seq;
  for (const uint64_t last : place.last) text << ' ' << last;
  text << '\n' << place.call;
  return text.str();
}

std::optional<Divergence::Place> Divergence::parse_place(int rank, const std::string& text) const {
  std::istringstream in(text);
  Place place{rank, 0, 0, std::vector<uint64_t>(communicators_.size()), {}};
  in >> place.communicator >> place.seq;
  for (uint64_t& last : place.last) in >> last;
  if (!in || place.communicator >= communicators_.size()) return std::nullopt;
  std::getline(in.ignore(), place.call);
  return place;
}

// If ranks wait for ever in two communicators, there are two of them of which each lacks what the other waits for: of
// those that wait in the first communicator, one that the second's earliest lacks, and the other way round. What a rank
// told holds while it waits, and it waits as long as the other does.
std::optional<std::string> Divergence::find_crossed(const Place& own, const Talk& talk) const {
  std::vector<Place> places{own};
  for (const auto& [peer, text] : talk.places)
    if (auto place = parse_place(peer, text)) places.push_back(*std::move(place));
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.rank < b.rank; });
  for (const Place& a : places)
    for (const Place& b : places)
      if (a.rank < b.rank && a.communicator != b.communicator && a.waits_for(b) && b.waits_for(a))
        return concat("ranks disagree: rank ", a.rank, " called collective #", a.seq, " ", a.call,
                      ", for which it waits, "
                      "and rank ",
                      b.rank, " called collective #", b.seq, " ", b.call, " of another group");
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

void Divergence::start_exchange(size_t number, const Place& place) {
  Communicator& communicator = communicators_[number];
  const std::string own = communicator.told == communicator.last ? std::string() : table(communicator);
  exchange_ = Talk::start([store = store_, own, number, place, world_size = world_size_](Talk& talk) {
    if (!own.empty()) store->set(key_of(number, place.rank), own);
    store->set(place_key_of(place.rank), text_of(place));
    const auto read = [&](const std::string& key, int peer, auto& texts) {
      if (store->check({key})) texts.emplace_back(peer, store->get_to_str(key));
    };
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer == place.rank) continue;
      read(key_of(number, peer), peer, talk.tables);
      read(place_key_of(peer), peer, talk.places);
    }
  });
  if (!exchange_) return;
  exchange_->communicator = number;
  communicator.told = communicator.last;
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

std::optional<std::string> Divergence::look(size_t communicator, const Op& op) {
  if (!store_) return std::nullopt;
  Place place{rank_, communicator, op.seq, {}, op.text()};
  for (const Communicator& each : communicators_) place.last.push_back(each.last);
  if (!exchange_) start_exchange(communicator, place);
  if (!exchange_) return std::nullopt;
  const std::shared_ptr<Talk> exchange = exchange_;
  if (!exchange->wait_for(kPatience)) return std::nullopt;
  exchange_.reset();
  std::optional<std::string> difference;
  for (const auto& [peer, theirs] : exchange->tables)
    if (!difference) difference = compare(communicators_[exchange->communicator], peer, theirs);
  if (!difference) difference = find_crossed(place, *exchange);
  if (difference) await_others();
  return difference;
}

}  // namespace zeroshard
