#include "comm/shm_comm.h"

#include <cstring>

#include "base/check.h"
#include "comm/shm_memory.h"

namespace zeroshard {
namespace {

// Waits until every rank has called agree(). `error` says why this rank's last step failed; "": it did not fail. If any
// rank has an error, throws CommError on every rank.
void agree(Bootstrap& bootstrap, const std::string& error, RankNumbers numbers) {
  const std::vector<std::string> errors = bootstrap.all_gather(error.substr(0, 900));
  for (size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty())
      throw CommError(concat("rank ", numbers.of(static_cast<int>(rank)), " cannot use shared memory: ", errors[rank]));
}

template <typename Step>
std::string error_of(const Step& step) {
  try {
    step();
    return {};
  } catch (const std::exception& error) {
    return error.what()[0] == 0 ? "unknown error" : error.what();
  }
}

std::shared_ptr<DirectCore> connect(Bootstrap& bootstrap, const CommOptions& options) {
  const int rank = bootstrap.rank(), world_size = bootstrap.world_size();
  std::shared_ptr<ShmMemory> memory;
  const RankNumbers numbers = options.numbers;
  agree(bootstrap,
        error_of([&] { memory = std::make_shared<ShmMemory>(rank, world_size, options.staging_bytes, numbers); }),
        numbers);
  ShmHello hello = memory->hello();
  std::vector<ShmHello> hellos;
  for (const std::string& bytes : bootstrap.all_gather({reinterpret_cast<const char*>(&hello), sizeof hello})) {
    ZS_ASSERT(bytes.size() == sizeof hello, "a rank runs another build of zeroshard");
    std::memcpy(&hello, bytes.data(), sizeof hello);
    hellos.push_back(hello);
  }
  std::vector<ProcessId> processes;
  for (const ShmHello& each : hellos) processes.push_back(each.process);
  agree(bootstrap, error_of([&] { memory->connect(std::move(hellos)); }), numbers);
  memory->connected();
  return std::make_shared<DirectCore>(
      std::move(memory), PeerWatch(std::move(processes), options.stall_timeout_ms, nullptr, numbers), rank, options);
}

}  // namespace

ShmComm::ShmComm(Bootstrap& bootstrap, const CommOptions& options) : DirectComm(connect(bootstrap, options), "shm") {}

}  // namespace zeroshard
