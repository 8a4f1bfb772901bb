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
constexpr std::chrono::milliseconds kPatience(200);   // time for the store to answer
constexpr std::chrono::milliseconds kFarewell(3000);  // time for the other ranks to find the difference, too

}  // namespace

Divergence::Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNumbers numbers)
    : store_(std::move(store)), rank_(rank), world_size_(world_size), numbers_(numbers) {
  if (store_) generation_ = store_->add(concat("zeroshard/divergence/", rank), 1);
}

std::string Divergence::key(std::string_view what) const {
  return concat("zeroshard/", generation_, "/", what);
}

std::string Divergence::key(std::string_view what, int rank) const {
  return concat(key(what), "/", rank);
}

size_t Divergence::add_communicator() {
  const std::scoped_lock lock(mutex_);
  communicators_.emplace_back();
  return communicators_.size() - 1;
}

void Divergence::note(size_t communicator, const Op& op, uint64_t hash) {
  const std::scoped_lock lock(mutex_);
  Communicator& own = communicators_[communicator];
  own.last = op.seq;
  own.calls[own.last % own.calls.size()] = {op.seq, hash, op};
}

// Returns one line for each of the latest calls, oldest first, with the number, hash and text of the call.
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

// Compares this rank's calls with the table `theirs` of `peer`, and notes in known_ the number of the last call of
// `peer` that it reads there. Each rank keeps only its latest calls. Looks for the first call that both ranks still
// have, and whose hashes differ. If there is one, returns a text that says how each of the two ranks made this call. If
// not, returns nothing. The ranks might differ already in a call that they no longer have, because a hash covers all
// calls up to its own.
std::optional<std::string> Divergence::compare(size_t number, int peer, const std::string& theirs) {
  const std::scoped_lock lock(mutex_);
  const Communicator& communicator = communicators_[number];
  std::istringstream lines(theirs);
  uint64_t seq = 0, hash = 0;
  std::string text;
  while (lines >> seq >> hash && std::getline(lines.ignore(), text)) {
    known_[{number, peer}] = seq;
    const Call& own = communicator.calls[seq % communicator.calls.size()];
    if (own.seq != seq || own.hash == hash) continue;
    const std::string mine = concat("rank ", numbers_.of(rank_), " called ", own.op.text());
    const std::string other = concat("rank ", numbers_.of(peer), " called ", text);
    return concat("ranks disagree: in collective #", seq, " ", rank_ < peer ? mine : other, ", ",
                  rank_ < peer ? other : mine);
  }
  return std::nullopt;
}

// Returns `place` as a text for the store. The first line has the communicator, the number of the call and the numbers
// of the last calls in all communicators. The second line has the text of the call.
std::string Divergence::text_of(const Place& place) {
  std::ostringstream text;
  text << place.communicator << ' ' << place.seq;
  for (const uint64_t last : place.last) text << ' ' << last;
  text << '\n' << place.call;
  return text.str();
}

std::optional<Divergence::Place> Divergence::parse_place(int rank, const std::string& text) const {
  std::istringstream in(text);
  const std::scoped_lock lock(mutex_);
  Place place{rank, 0, 0, std::vector<uint64_t>(communicators_.size()), {}};
  in >> place.communicator >> place.seq;
  for (uint64_t& last : place.last) in >> last;
  if (!in || place.communicator >= communicators_.size()) return std::nullopt;
  std::getline(in.ignore(), place.call);
  return place;
}

// Finds two ranks that wait in different communicators, each for a call that the other has not made. Returns a text
// that names both, or nothing.
//
// Such ranks exist whenever all ranks wait forever, some in communicator A and the others in communicator B. Let b be
// the rank with the fewest calls in A. All ranks have made the last call of b in A, so b cannot wait in A and waits in
// B. A rank that waits in A waits for a call that b has not made, because otherwise all ranks would have made the call.
// Let a be the rank with the fewest calls in B. For the same reasons, a waits in A, and a rank that waits in B waits
// for a call that a has not made. So a and b are such ranks.
//
// A published place may be out of date, but the two places of such a pair are not. When the second of the two ranks
// published its place, it had not made the call for which the first waits, so the first was still waiting. (This would
// not hold for a collective that some ranks complete without the others, such as a broadcast at its receivers. The
// engine never calls such collectives on ranks that take different paths.)
std::optional<std::string> Divergence::find_crossed(const std::optional<Place>& own, const Talk& talk) const {
  std::vector<Place> places;
  if (own) places.push_back(*own);
  for (const auto& [peer, text] : talk.places)
    if (auto place = parse_place(peer, text)) places.push_back(*std::move(place));
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.rank < b.rank; });
  for (const Place& a : places)
    for (const Place& b : places)
      if (a.rank < b.rank && a.communicator != b.communicator && a.waits_for(b) && b.waits_for(a))
        return concat("ranks disagree: rank ", numbers_.of(a.rank), " called collective #", a.seq, " ", a.call,
                      " and waits, rank ", numbers_.of(b.rank), " called collective #", b.seq, " ", b.call,
                      ", in another group, and waits");
  return std::nullopt;
}

// The thread is detached, because it might wait for ever for a store whose host was stopped.
std::shared_ptr<Divergence::Talk> Divergence::Talk::start(std::function<void(Talk&)> body) {
  auto talk = std::make_shared<Talk>();
  const auto run = [talk, body = std::move(body)] {
    try {
      body(*talk);
    } catch (const std::exception&) {  // for example because the store's host is gone, which other checks report better
      talk->broken = true;
    }
    const std::scoped_lock lock(talk->mutex_);
    talk->over_ = true;
    talk->changed_.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    return nullptr;  // this process might be unable to start threads
  }
  return talk;
}

bool Divergence::Talk::wait_for(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return over_; });
}

void Divergence::start_exchange(size_t number, const std::optional<Place>& place, bool asks) {
  const std::string calls = concat("calls/", number);
  std::map<std::string, std::string> own;                   // texts by key
  std::vector<std::pair<std::string, std::string>> theirs;  // for each rank, the keys of its table and place
  uint64_t last = 0;
  {
    const std::scoped_lock lock(mutex_);
    const Communicator& communicator = communicators_[number];
    last = communicator.last;
    if (communicator.told != last) own.emplace(key(calls, rank_), table(communicator));
  }
  if (place) own.emplace(key("place", rank_), text_of(*place));
  for (int rank = 0; rank < world_size_; ++rank) theirs.emplace_back(key(calls, rank), key("place", rank));
  const auto body = [store = store_, own, theirs, self = size_t(rank_), asks, asked = key("asked")](Talk& talk) {
    for (const auto& [key, text] : own) store->set(key, text);
    if (asks) store->add(asked, 1);
    const auto read = [&](const std::string& key, size_t peer, auto& texts) {
      if (store->check({key})) texts.emplace_back(int(peer), store->get_to_str(key));
    };
    for (size_t peer = 0; peer < theirs.size(); ++peer) {
      if (peer == self) continue;
      read(theirs[peer].first, peer, talk.tables);
      read(theirs[peer].second, peer, talk.places);
    }
  };
  exchange_ = Talk::start(body);
  if (!exchange_) return;
  exchange_->communicator = number;
  const std::scoped_lock lock(mutex_);
  communicators_[number].told = last;
}

void Divergence::await_others() const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(key("found", rank));
  const auto talk = Talk::start([store = store_, keys, self = size_t(rank_)](Talk&) {
    const auto end = Clock::now() + kFarewell;
    store->set(keys[self], "");
    for (const std::string& key : keys)
      while (!store->check({key}) && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  if (talk) talk->wait_for(kFarewell);
}

std::optional<std::string> Divergence::look(size_t communicator, const Op* waiting, bool asks) {
  if (!store_) return std::nullopt;
  const std::scoped_lock looking(looking_);
  std::optional<Place> place;
  if (waiting != nullptr) {
    const std::scoped_lock lock(mutex_);
    place = {rank_, communicator, waiting->seq, {}, waiting->text()};
    for (const Communicator& each : communicators_) place->last.push_back(each.last);
  }
  if (!exchange_) start_exchange(communicator, place, asks);
  if (!exchange_) return std::nullopt;
  const std::shared_ptr<Talk> exchange = exchange_;
  if (!exchange->wait_for(kPatience)) return std::nullopt;
  exchange_.reset();
  std::optional<std::string> difference;
  for (const auto& [peer, theirs] : exchange->tables)
    if (const auto found = compare(exchange->communicator, peer, theirs); found && !difference) difference = found;
  if (!difference) difference = find_crossed(place, *exchange);
  if (difference) await_others();
  return difference;
}

Divergence::News Divergence::hear() {
  if (!store_) return {};
  const std::scoped_lock looking(looking_);
  if (!inquiry_) {
    const auto body = [store = store_, asked = key("asked"), failed = key("failed"), heard = heard_](Talk& talk) {
      const int64_t count = store->add(asked, 0);
      if (count != heard && store->check({failed})) talk.news.failure = store->get_to_str(failed);
      talk.news.asked = count != heard;
      talk.asked = count;
    };
    inquiry_ = Talk::start(body);
  }
  const std::shared_ptr<Talk> inquiry = inquiry_;
  // If the store has failed once, inquiry_ stays, so the store is not asked again. Each further try could write to the
  // log.
  if (!inquiry || !inquiry->wait_for(kPatience) || inquiry->broken) return {};
  inquiry_.reset();
  if (inquiry->news.asked) heard_ = inquiry->asked;
  return inquiry->news;
}

void Divergence::tell_failure(const std::string& why) {
  if (!store_) return;
  const auto talk = Talk::start([store = store_, failed = key("failed"), asked = key("asked"), why](Talk&) {
    if (!store->check({failed})) store->set(failed, why);
    store->add(asked, 1);
  });
  if (talk) talk->wait_for(kPatience);
}

std::vector<std::pair<int, uint64_t>> Divergence::behind(size_t communicator, uint64_t seq) const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::pair<int, uint64_t>> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto found = known_.find({communicator, rank});
    const uint64_t last = found == known_.end() ? 0 : found->second;
    if (rank != rank_ && last < seq) ranks.emplace_back(rank, last);
  }
  return ranks;
}

}  // namespace zeroshard
