#include <ATen/CPUGeneratorImpl.h>

#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/check.h"
#include "zeroshard/nn.h"

// The state around an engine for a torch::nn model, under the names that Python's engine uses.
namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr char kBuffer[] = "buffer";

std::string random_state() {
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  return to_base64({static_cast<const std::byte*>(state.const_data_ptr()), state.nbytes()});
}

void restore_random_state(const std::string& text) {
  const std::vector<std::byte> bytes = from_base64(text);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state = generator.get_state().clone();
  ZS_CHECK(state.nbytes() == bytes.size(), "the random state in the checkpoint has ", bytes.size(),
           " bytes, that of this LibTorch ", state.nbytes(), ": it was saved with another version");
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(state.data_ptr()));
  generator.set_state(state);
}

}  // namespace

void ModuleEngine::save(const std::string& root, const std::string& client, const SaveOptions& save) {
  CheckpointContents contents;
  contents.state = Json{{"global_steps", steps_},
                        {"lr_scheduler", {{"last_batch_iteration", iteration_}}},
                        {"client", Json::parse(client)}}
                       .dump();
  contents.rank_state = Json{{"random", {{"torch", random_state()}}}}.dump();
  for (const auto& [name, buffer] : buffers_) {
    if (rank_ == 0) contents.buffers.push_back({name, kBuffer, buffer.contiguous(), buffer.sizes().vec()});
  }
  save_checkpoint(root, concat("global_step", steps_), steps_, contents, save);
}

std::optional<std::string> ModuleEngine::load(const std::string& root, const LoadOptions& load) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  const auto loaded = load_checkpoint(root, load, [&](const std::vector<TensorInfo>& infos) {
    std::vector<TensorState> wanted;
    for (const TensorInfo& info : infos) {
      if (info.kind != kBuffer) continue;
      for (const auto& [name, buffer] : buffers_) {
        if (name != info.name) continue;
        copies.emplace_back(buffer, buffer.clone());
        wanted.push_back({name, kBuffer, copies.back().second, buffer.sizes().vec()});
      }
    }
    return wanted;
  });
  if (!loaded) return std::nullopt;
  for (auto& [buffer, copy] : copies) buffer.copy_(copy);
  const Json state = Json::parse(loaded->state);
  steps_ = state.value("global_steps", loaded->step);
  if (state.contains("lr_scheduler") && state["lr_scheduler"].is_object())
    iteration_ = state["lr_scheduler"].value("last_batch_iteration", iteration_);
  apply_schedule();
  const Json rank = Json::parse(loaded->rank_states[size_t(rank_) % loaded->rank_states.size()]);
  if (size_t(rank_) < loaded->rank_states.size() && rank.contains("random"))
    restore_random_state(rank["random"].at("torch").get<std::string>());
  return state.value("client", Json::object()).dump();
}

}  // namespace zeroshard
