#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "zeroshard/nn.h"

// Saves and loads a ModuleEngine. In addition to the state of the Engine, a checkpoint has the buffers, the iteration
// of the learning rate schedule, the counts of Progress, the state of the random generator and the caller's text. These
// have the names that Python's engine uses.
namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr char kBuffer[] = "buffer";

// Returns the kind under which a checkpoint has a rank's values of a buffer. Rank 0 saves its values of every buffer.
// The other ranks save their values only of buffers whose values are not equal on all ranks.
std::string buffer_kind(int rank) {
  return rank == 0 ? kBuffer : concat(kBuffer, "@", rank);
}

}  // namespace

void ModuleEngine::save(const std::string& root, const std::string& client, const SaveOptions& save) {
  CheckpointContents contents;
  std::vector<at::Tensor> values;
  for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
  const std::vector<bool> differs = differ_among_ranks(values);
  run_together("save_checkpoint", [&] {
    Json state{{"lr_scheduler", {{"last_batch_iteration", iteration_}}}, {"client", Json::parse(client)}};
    for (const auto& [name, count] : progress_at_last_step().counts()) state[name] = count;
    contents.state = state.dump();
    contents.rank_state = random_state();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto& [name, buffer] = buffers_[i];
      if (rank_ == 0 || differs[i])
        contents.buffers.push_back({name, buffer_kind(rank_), buffer.contiguous(), buffer.sizes().vec()});
    }
  });
  save_checkpoint(root, concat("global_step", steps()), steps(), contents, save);
}

std::optional<std::string> ModuleEngine::load(const std::string& root, const LoadOptions& load) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::string client;
  LoadOptions options = load;
  options.takes.insert(options.takes.end(), {"buffers", "learning rate, counts and random numbers"});
  options.finish = [&](const LoadedState& loaded) {
    for (auto& [buffer, copy] : copies) set_buffer(buffer, copy);
    const Json state = Json::parse(loaded.state);
    client = state.value("client", Json::object()).dump();
    NamedCounts counts;
    for (const auto& [name, value] : state.items())
      if (value.is_number_integer()) counts.emplace_back(name, value.get<int64_t>());
    restore_progress(counts, loaded.step);
    if (state.contains("lr_scheduler") && state["lr_scheduler"].is_object())
      iteration_ = state["lr_scheduler"].value("last_batch_iteration", iteration_);
    apply_schedule();
    restore_random_state(loaded.rank_states, rank_);
    if (load.finish) load.finish(loaded);
  };
  const auto loaded = load_checkpoint(root, options, [&](const std::vector<TensorInfo>& infos) {
    copies.clear();  // drops copies that were made for a damaged checkpoint, before load_checkpoint() tried this one
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
