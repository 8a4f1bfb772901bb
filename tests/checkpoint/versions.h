#pragma once
#include <stdlib.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/format.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "comm/local_comm.h"
#include "support/comm_world.h"
#include "support/model_disk.h"

// Checkpoints whose every element tells which save it is of.
namespace zeroshard::testing {

struct Version {
  int number = 0;  // of the save: two of the same tag and step differ
  std::string tag;
  int64_t step = 0;
  int keep = 0;
  bool latest = true;
};

inline const std::string kVersionsRoot = "/disk/runs/one";

// More than a sector per rank, and not a whole number of them; one tensor has fewer elements than ranks.
inline const std::vector<std::pair<std::string, int64_t>> kVersionTensors = {{"big", 1201}, {"small", 1}};

inline float version_value(int number, int64_t element) {
  return float(number) * 10'000 + float(element);
}

// Rank `rank`'s share of a version.
struct VersionShare {
  VersionShare(int number, int rank, int world_size) {
    memory.reserve(kVersionTensors.size());
    for (const auto& [name, numel] : kVersionTensors) {
      const int64_t size = (numel + world_size - 1) / world_size;
      const Range mine = intersect({0, numel}, {rank * size, (rank + 1) * size});
      std::vector<float>& values = memory.emplace_back(size_t(mine.size()));
      for (int64_t i = 0; i < mine.size(); ++i) values[size_t(i)] = version_value(number, mine.begin + i);
      slices.push_back({.name = name,
                        .kind = "weight",
                        .dtype = "F32",
                        .aliases = {},
                        .shape = {numel},
                        .elements = mine,
                        .data = host_data(values.data())});
    }
  }
  // After it has been used: what training does.
  void overwrite() {
    for (auto& values : memory) std::fill(values.begin(), values.end(), -1.0F);
  }
  std::vector<std::vector<float>> memory;
  std::vector<StateSlice> slices;
};

inline SaveRequest version_request(const Version& version, const VersionShare& share) {
  SaveRequest request;
  request.root = kVersionsRoot;
  request.tag = version.tag;
  request.step = version.step;
  request.keep = version.keep;
  request.latest = version.latest;
  request.state = concat("{\"version\": ", version.number, "}");
  request.slices = share.slices;
  return request;
}

// What each rank throws; `io_of(rank)` is its disk.
inline std::vector<std::string> save_version(const Version& version, int world_size,
                                             const std::function<Io&(int)>& io_of) {
  CommOptions options;
  options.timeout_ms = 60'000;  // where a rank would wait for ever, its error tells
  return run_local_world(
      world_size,
      [&](Comm& comm) {
        const VersionShare share(version.number, comm.rank(), world_size);
        save_checkpoint(version_request(version, share), comm, io_of(comm.rank()));
      },
      options);
}

// The number of the version that one rank finds ("nothing": none), or what is wrong.
inline std::string load_version(Io& io, const std::optional<std::string>& tag = {}) {
  constexpr int kOther = -7;
  VersionShare share(kOther, 0, 1);
  try {
    const auto comm = make_single_comm();
    const LoadRequest request{kVersionsRoot, tag, false,
                              [&](const Manifest&, const TensorIndex&) { return share.slices; }};
    const auto loaded = load_checkpoint(request, *comm, io);
    if (!loaded) return "nothing";
    const std::string& state = loaded->manifest.state;
    const int number = std::atoi(state.c_str() + state.find(':') + 1);
    const VersionShare expected(number, 0, 1);
    return share.memory == expected.memory ? std::to_string(number) : "other bits than " + state;
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Warnings are expected, thousands of them.
class QuietLog {
 public:
  QuietLog() { ::setenv(kName, "error", 1); }
  ~QuietLog() { ::unsetenv(kName); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  static constexpr const char* kName = "ZEROSHARD_LOG_LEVEL";
};

}  // namespace zeroshard::testing
