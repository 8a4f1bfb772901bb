#include "comm_c10d/make_comm.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "comm/local_comm.h"
#include "comm/shm_comm.h"
#include "comm_c10d/c10d_bootstrap.h"
#include "comm_c10d/c10d_comm.h"
#include "comm_c10d/divergence.h"
#include "comm_c10d/gloo_group.h"
#include "comm_c10d/group_beside.h"
#include "comm_c10d/make_tiers.h"
#include "comm_c10d/tiered_comm.h"
#include "device/current_device.h"

namespace zeroshard {
namespace {

// The identity and the options of a rank. Ranks send the bytes of this struct, which have the same meaning for all
// ranks, because all of them run the same build.
struct RankCard {
  char host[128] = {};  // this_host(); ranks with the same text see the same processes in /proc
  ProcessId process;
  int32_t transport = 0;
  int32_t device_type = 0;
  int64_t reaches_other_hosts = 0;  // 1: a Gloo group that zeroshard creates can connect this rank to other hosts
  int64_t generation = 0;           // Divergence::generation() of the rank
  int64_t serial = 0;               // number of this card in its process

  std::string name() const { return concat(host, "/", process.pid, "/", process.start_time, "/", serial); }
};

std::vector<RankCard> exchange_cards(Bootstrap& bootstrap, at::Device device, const CommOptions& options,
                                     int64_t generation) {
  RankCard card;
  const std::string known = this_host(),
                    host = known.empty() ? concat("unknown host of rank ", bootstrap.rank()) : known;
  std::memcpy(card.host, host.data(), std::min(host.size(), sizeof card.host - 1));
  card.process = this_process();
  card.transport = static_cast<int32_t>(options.transport);
  card.device_type = static_cast<int32_t>(device.type());
  card.reaches_other_hosts = reaches_other_hosts() ? 1 : 0;
  static std::atomic<int64_t> serials{0};
  card.generation = generation;
  card.serial = ++serials;
  std::vector<RankCard> cards;
  for (const std::string& bytes : bootstrap.all_gather({reinterpret_cast<const char*>(&card), sizeof card})) {
    if (bytes.size() != sizeof card)
      throw CommError(concat("rank ", options.numbers.of(int(cards.size())), " runs another version of zeroshard"));
    std::memcpy(&card, bytes.data(), sizeof card);
    cards.push_back(card);
  }
  for (size_t rank = 1; rank < cards.size(); ++rank)
    if (cards[rank].transport != cards[0].transport || cards[rank].device_type != cards[0].device_type)
      throw CommError(concat("rank ", options.numbers.of(int(rank)),
                             " asks for another transport or device type than rank ", options.numbers.of(0),
                             ": start every rank with the same configuration and kind of device"));
  return cards;
}

bool on_one_host(const std::vector<RankCard>& cards) {
  for (const RankCard& card : cards)
    if (std::strcmp(card.host, cards[0].host) != 0) return false;
  return true;
}

// Returns the number of ranks on each host. Returns 1 if there is only one host, if hosts have different numbers of
// ranks, or if the ranks of a host are not consecutive.
int ranks_per_host(const std::vector<RankCard>& cards) {
  const auto same_host = [&](size_t a, size_t b) { return std::strcmp(cards[a].host, cards[b].host) == 0; };
  size_t ranks = 1;
  while (ranks < cards.size() && same_host(0, ranks)) ++ranks;
  if (cards.size() % ranks != 0 || cards.size() == ranks) return 1;
  for (size_t first = 0; first < cards.size(); first += ranks) {
    for (size_t rank = first; rank < first + ranks; ++rank)
      if (!same_host(first, rank)) return 1;
    for (size_t earlier = 0; earlier < first; earlier += ranks)
      if (same_host(first, earlier)) return 1;
  }
  return static_cast<int>(ranks);
}

PeerWatch watch_of(const std::vector<RankCard>& cards, int rank, const CommOptions& options) {
  std::vector<ProcessId> processes;
  for (const RankCard& card : cards)
    processes.push_back(std::strcmp(card.host, cards[static_cast<size_t>(rank)].host) == 0 ? card.process
                                                                                           : ProcessId{});
  return PeerWatch(std::move(processes), options.stall_timeout_ms, options.wait_listener, options.numbers);
}

std::unique_ptr<Comm> single_comm(at::Device device, const CommOptions& options) {
  if (device.is_cpu()) return make_single_comm();
  return std::make_unique<C10dComm>(nullptr, device, PeerWatch({{}}, options.stall_timeout_ms), options, nullptr,
                                    make_single_comm());
}

// Returns null if options.transport is kProcessGroup, or if ranks are on several hosts. Otherwise returns a
// shared-memory communicator. If the ranks cannot share memory, throws CommError for kShm, but for kAuto logs a warning
// and returns null.
std::unique_ptr<Comm> try_shm(C10dBootstrap& bootstrap, const std::vector<RankCard>& cards,
                              const CommOptions& options) {
  using Transport = CommOptions::Transport;
  if (options.transport == Transport::kProcessGroup || !on_one_host(cards)) return nullptr;
  try {
    return std::make_unique<ShmComm>(bootstrap, options);
  } catch (const CommError& error) {  // every rank throws it
    if (options.transport == Transport::kShm) throw;
    log(LogLevel::kWarning, concat(error.what(), "; using the process group instead"));
    return nullptr;
  }
}

// Returns a communicator of two levels if options.transport is kAuto, ranks_per_host() is more than 1, every rank can
// reach other hosts, `group` has a store, and the ranks of each host can share memory. Otherwise returns null. Throws
// CommError if Gloo cannot connect the hosts.
std::unique_ptr<Comm> try_tiers(C10dBootstrap& bootstrap, const std::vector<RankCard>& cards,
                                const c10::intrusive_ptr<c10d::ProcessGroup>& group, const PeerWatch& watch,
                                const CommOptions& options, const std::shared_ptr<Divergence>& divergence) {
  const int ranks = ranks_per_host(cards);
  if (options.transport != CommOptions::Transport::kAuto || ranks == 1) return nullptr;
  // The caller may have created `group` without MASTER_ADDR. A rank then may not know by which interface it reaches
  // other hosts.
  for (const RankCard& card : cards)
    if (card.reaches_other_hosts == 0) return nullptr;
  const c10::intrusive_ptr<c10d::Store> store = group->getStore();
  if (!store) return nullptr;
  std::unique_ptr<Tiers> tiers =
      make_tiers(bootstrap, ranks, store, concat("zeroshard/hosts/", cards[0].name()), watch, options);
  if (!tiers) return nullptr;
  return std::make_unique<TieredComm>(std::move(tiers), group, watch, options, divergence);
}

}  // namespace

std::unique_ptr<Comm> make_comm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device any_device,
                                const CommOptions& comm_options, std::shared_ptr<Divergence> divergence) {
  using Transport = CommOptions::Transport;
  const at::Device device = with_index(any_device);
  if (!group || group->getSize() == 1) return single_comm(device, comm_options);
  const bool on_host = device.is_cpu();
  CommOptions options = comm_options;
  // The communicator of a device and its host communicator fail together.
  if (!on_host && !options.failure) options.failure = std::make_shared<SharedFailure>();
  c10::intrusive_ptr<c10d::ProcessGroup> host_group = group;
  if (!on_host) {
    GroupBeside beside = make_group_beside(*group, options);
    host_group = std::move(beside.group);
    options.processes = std::move(beside.processes);
  }
  if (!divergence)
    divergence = std::make_shared<Divergence>(group->getStore(), group->getRank(), group->getSize(), options.numbers);
  C10dBootstrap bootstrap(host_group, options);
  const std::vector<RankCard> cards = exchange_cards(bootstrap, device, options, divergence->generation());
  const auto by_generation = [](const RankCard& a, const RankCard& b) { return a.generation < b.generation; };
  divergence->agree(std::max_element(cards.begin(), cards.end(), by_generation)->generation);
  if (options.transport == Transport::kShm && !(on_host && on_one_host(cards)))
    throw ConfigError(concat("transport 'shm' needs CPU ranks of one host and pid namespace, but ",
                             on_host ? "the ranks are on several" : "the device is " + device.str(),
                             ": use 'auto' or 'process_group'"));
  const PeerWatch watch = watch_of(cards, group->getRank(), options);
  std::unique_ptr<Comm> host = try_shm(bootstrap, cards, options);
  if (!host && on_host) host = try_tiers(bootstrap, cards, host_group, watch, options, divergence);
  if (host && on_host) return host;
  if (!host) host = std::make_unique<C10dComm>(host_group, at::kCPU, watch, options, divergence);
  if (on_host) return host;
  return std::make_unique<C10dComm>(group, device, watch, options, std::move(divergence), std::move(host));
}

std::unique_ptr<Comm> make_comm(const std::string& group_name, at::Device device, const CommOptions& options) {
  if (group_name.empty()) return single_comm(with_index(device), options);
  return make_comm(c10d::resolve_process_group(group_name), device, options);
}

}  // namespace zeroshard
