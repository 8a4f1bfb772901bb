#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "file/durable.h"
#include "support/comm_world.h"

// Checkpoints of one small tensor.
namespace zeroshard::testing {

inline constexpr int64_t kNumel = 10;  // five for each of two ranks

struct SmallSave {
  std::string root, tag;
  int64_t step = 0;
  int keep = 0;
  bool latest = true;
};

// Two ranks save a tensor whose elements are all `step`; rank `victim` by way of `io`.
inline std::vector<std::string> save(const SmallSave& options, Io& io = posix_io(), int victim = 0) {
  return run_local_world(2, [&](Comm& comm) {
    std::vector<float> values(kNumel / 2, float(options.step));
    SaveRequest request;
    request.root = options.root;
    request.tag = options.tag;
    request.step = options.step;
    request.keep = options.keep;
    request.latest = options.latest;
    request.slices.push_back({.name = "x",
                              .kind = "weight",
                              .dtype = "F32",
                              .aliases = {},
                              .shape = {kNumel},
                              .elements = {comm.rank() * kNumel / 2, (comm.rank() + 1) * kNumel / 2},
                              .data = host_data(values.data())});
    save_checkpoint(request, comm, comm.rank() == victim ? io : posix_io());
  });
}

struct SmallLoad {
  std::string root;
  std::optional<std::string> tag = std::nullopt;
  bool strict = false;
};

// The step that one rank loads by way of `io`, or what is wrong.
inline std::string load(const SmallLoad& options, Io& io = posix_io()) {
  std::string found = "nothing";
  const auto errors = run_local_world(1, [&](Comm& comm) {
    std::vector<float> values(kNumel, -1);
    StateSlice slice{.name = "x",
                     .kind = "weight",
                     .dtype = "F32",
                     .aliases = {},
                     .shape = {kNumel},
                     .elements = {0, kNumel},
                     .data = host_data(values.data())};
    LoadRequest request;
    request.root = options.root;
    request.tag = options.tag;
    request.strict = options.strict;
    request.wanted = [&](const Manifest&, const TensorIndex&) { return std::vector{slice}; };
    const auto loaded = load_checkpoint(request, comm, io);
    if (!loaded) return;
    EXPECT_THAT(values, ::testing::Each(float(loaded->manifest.step)));
    found = std::to_string(loaded->manifest.step);
  });
  return errors[0].empty() ? found : errors[0];
}

inline std::vector<std::string> names_in(const std::string& root) {
  return Directory::open(posix_io(), root).list();
}

}  // namespace zeroshard::testing
