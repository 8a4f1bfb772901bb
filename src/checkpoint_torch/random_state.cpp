#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/check.h"
#include "zeroshard/checkpoint.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSeeds = int64_t(1) << 62;

at::Tensor state_of(const std::string& text) {
  const std::vector<std::byte> bytes = from_base64(text);
  at::Tensor state = at::detail::getDefaultCPUGenerator().get_state().clone();
  ZS_CHECK(state.nbytes() == bytes.size(), "the random state in the checkpoint has ", bytes.size(),
           " bytes, that of this LibTorch ", state.nbytes(), ": it was saved with another version");
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(state.data_ptr()));
  return state;
}

}  // namespace

std::string random_state() {
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const std::string text = to_base64({static_cast<const std::byte*>(state.const_data_ptr()), state.nbytes()});
  return Json{{"random", {{"torch", text}}}}.dump();
}

std::optional<int64_t> restore_random_state(const std::vector<std::string>& rank_states, int rank) {
  at::Tensor own;
  // Every rank checks the states of all ranks, so that either all ranks continue or none.
  for (size_t i = 0; i < rank_states.size(); ++i) {
    const Json state = Json::parse(rank_states[i]);
    if (!state.contains("random") || !state["random"].is_object()) continue;
    const at::Tensor random = state_of(state["random"].at("torch").get<std::string>());
    if (i == size_t(rank) % rank_states.size()) own = random;
  }
  if (!own.defined()) return std::nullopt;
  {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(own);
  }
  if (size_t(rank) < rank_states.size()) return std::nullopt;
  const int64_t seed = at::randint(kSeeds, {1}, at::kLong).item<int64_t>() + rank;
  at::manual_seed(uint64_t(seed));
  return seed;
}

}  // namespace zeroshard
