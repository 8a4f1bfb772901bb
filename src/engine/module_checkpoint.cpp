#include <ATen/CPUGeneratorImpl.h>

#include <nlohmann/json.hpp>
#include <set>

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

// Throws ValueError unless this LibTorch can take the state.
at::Tensor to_random_state(const std::string& text) {
  const std::vector<std::byte> bytes = from_base64(text);
  at::Tensor state = at::detail::getDefaultCPUGenerator().get_state().clone();
  ZS_CHECK(state.nbytes() == bytes.size(), "the random state in the checkpoint has ", bytes.size(),
           " bytes, that of this LibTorch ", state.nbytes(), ": it was saved with another version");
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(state.data_ptr()));
  return state;
}

// Every rank looks at all states, so that either all ranks go on or none.
void restore_random_state(const std::vector<std::string>& rank_states, size_t rank) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  for (size_t i = 0; i < rank_states.size(); ++i) {
    const Json state = Json::parse(rank_states[i]);
    if (!state.contains("random")) continue;
    const at::Tensor random = to_random_state(state["random"].at("torch").get<std::string>());
    if (i == rank) generator.set_state(random);
  }
}

// The kind under which a rank's own values of a buffer are saved, where they are not those of rank 0.
std::string buffer_kind(int rank) {
  return rank == 0 ? kBuffer : concat(kBuffer, "@", rank);
}

}  // namespace

void ModuleEngine::save(const std::string& root, const std::string& client, const SaveOptions& save) {
  CheckpointContents contents;
  std::vector<at::Tensor> values;
  for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
  const std::vector<bool> differs = differ_among_ranks(values);
  run_together([&] {
    contents.state = Json{{"global_steps", steps_},
                          {"lr_scheduler", {{"last_batch_iteration", iteration_}}},
                          {"client", Json::parse(client)}}
                         .dump();
    contents.rank_state = Json{{"random", {{"torch", random_state()}}}}.dump();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto& [name, buffer] = buffers_[i];
      if (rank_ == 0 || differs[i])
        contents.buffers.push_back({name, buffer_kind(rank_), buffer.contiguous(), buffer.sizes().vec()});
    }
  });
  save_checkpoint(root, concat("global_step", steps_), steps_, contents, save);
}

std::optional<std::string> ModuleEngine::load(const std::string& root, const LoadOptions& load) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::string client;
  LoadOptions options = load;
  options.takes.insert(options.takes.end(), {"buffers", "learning rate, counts and random numbers"});
  options.finish = [&](const LoadedState& loaded) {
    for (auto& [buffer, copy] : copies) buffer.copy_(copy);
    const Json state = Json::parse(loaded.state);
    client = state.value("client", Json::object()).dump();
    steps_ = state.value("global_steps", loaded.step);
    if (state.contains("lr_scheduler") && state["lr_scheduler"].is_object())
      iteration_ = state["lr_scheduler"].value("last_batch_iteration", iteration_);
    apply_schedule();
    restore_random_state(loaded.rank_states, size_t(rank_));
    if (load.finish) load.finish(loaded);
  };
  const auto loaded = load_checkpoint(root, options, [&](const std::vector<TensorInfo>& infos) {
    copies.clear();  // of an older checkpoint's
    std::set<std::pair<std::string, std::string>> there;
    for (const TensorInfo& info : infos) there.emplace(info.name, info.kind);
    std::vector<TensorState> wanted;
    for (const auto& [name, buffer] : buffers_) {
      const std::string own = buffer_kind(rank_), kind = there.contains({name, own}) ? own : kBuffer;
      if (!there.contains({name, kind})) continue;
      copies.emplace_back(buffer, buffer.clone(at::MemoryFormat::Contiguous));
      wanted.push_back({name, kind, copies.back().second, buffer.sizes().vec()});
    }
    return wanted;
  });
  if (!loaded) return std::nullopt;
  return client;
}

}  // namespace zeroshard
