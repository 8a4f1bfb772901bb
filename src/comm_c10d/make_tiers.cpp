#include "comm_c10d/make_tiers.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "comm/shm_comm.h"
#include "comm_c10d/gloo_group.h"

namespace zeroshard {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
constexpr char kSays = 's', kEnded = 'e';  // the first character of a message

// Lets the ranks of one host exchange data over the bootstrap of all ranks. All ranks must call that bootstrap equally
// often. So if a host needs fewer exchanges than the others, its ranks go on calling the bootstrap in end() until all
// hosts are done.
class HostBootstrap final : public Bootstrap {
 public:
  HostBootstrap(Bootstrap& all, int ranks) : all_(all), first_(all.rank() / ranks * ranks), ranks_(ranks) {}
  int rank() const override { return all_.rank() - first_; }
  int world_size() const override { return ranks_; }
  std::vector<std::string> all_gather(std::string_view mine) override {
    std::vector<std::string> texts = say(kSays, mine);
    texts.erase(texts.begin() + first_ + ranks_, texts.end());
    texts.erase(texts.begin(), texts.begin() + first_);
    for (std::string& text : texts) text.erase(0, 1);
    return texts;
  }
  // Exchanges messages until every rank of every host has called end(). Returns the error of the lowest rank that has
  // one, or "" if no rank has one.
  std::string end(std::string_view error) {
    while (true) {
      const std::vector<std::string> texts = say(kEnded, error);
      const auto ended = [](const std::string& text) { return text.front() == kEnded; };
      if (!std::all_of(texts.begin(), texts.end(), ended)) continue;
      for (const std::string& text : texts)
        if (text.size() > 1) return text.substr(1);
      return {};
    }
  }

 private:
  std::vector<std::string> say(char kind, std::string_view text) { return all_.all_gather(concat(kind, text)); }

  Bootstrap& all_;
  int first_, ranks_;
};

std::unique_ptr<DirectComm> connect_host(Bootstrap& bootstrap, int ranks, const CommOptions& options) {
  HostBootstrap own(bootstrap, ranks);
  CommOptions host_options = options;
  host_options.numbers.first = options.numbers.of(bootstrap.rank() - own.rank());
  // The caller of a collective of Tiers watches the time, reports its wait, compares its calls with those of other
  // ranks, and passes failures on. So the host's communicator does none of this.
  host_options.timeout_ms = std::numeric_limits<int64_t>::max() / 4;
  host_options.wait_listener.reset();
  host_options.wait_graph.reset();
  host_options.failure.reset();
  std::unique_ptr<DirectComm> host;
  std::string error;
  try {
    host = std::make_unique<ShmComm>(own, host_options);
  } catch (const CommError& thrown) {  // every rank of this host throws it
    error = thrown.what();
  }
  if (const std::string first = own.end(error); !first.empty()) {
    log(LogLevel::kWarning, concat(first, "; using the process group alone instead"));
    return nullptr;
  }
  return host;
}

Group connect_link(int rank, std::future<Group> link, PeerWatch& watch, const CommOptions& options) {
  LongWait wait(options.wait_listener);
  while (link.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    wait.lasts([] { return std::string("the process groups between hosts, for all ranks"); });
    check_interrupt();
    if (const std::string trouble = watch.check_all(); !trouble.empty())
      throw CommError(concat("rank ", rank, ": ", trouble, " while hosts were connected"));
  }
  try {
    return link.get();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw CommError(concat("rank ", rank, ": cannot connect hosts: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw CommError(concat("rank ", rank, ": cannot connect hosts: ", error.what()));
  }
}

}  // namespace

std::unique_ptr<Tiers> make_tiers(Bootstrap& bootstrap, int ranks_per_host, c10::intrusive_ptr<c10d::Store> store,
                                  const std::string& name, PeerWatch watch, const CommOptions& options) {
  std::unique_ptr<DirectComm> host = connect_host(bootstrap, ranks_per_host, options);
  if (!host) return nullptr;
  const int rank = bootstrap.rank(), hosts = bootstrap.world_size() / ranks_per_host;
  // At the time-out, the caller of a collective reports that collective by name. Gloo gets a time-out that is two
  // seconds longer, so that its own error does not come first.
  std::future<Group> link = connect_gloo_group(store, concat(name, "/", rank % ranks_per_host), rank / ranks_per_host,
                                               hosts, options.timeout_ms + 2000);
  return std::make_unique<Tiers>(std::move(host),
                                 connect_link(options.numbers.of(rank), std::move(link), watch, options));
}

}  // namespace zeroshard
