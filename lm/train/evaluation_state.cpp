#include "train/evaluation_state.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "comm/comm.h"
#include "file/durable.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

constexpr const char* kName = "evaluation.json";
constexpr int64_t kMostBytes = 4096;

// Returns the state in the file, or nothing if there is no file, or if the file is damaged or belongs to another step.
std::optional<EvaluationState> state_in(const Directory& folder, int64_t step) {
  try {
    const auto json = nlohmann::json::parse(read_small_file(folder, kName, kMostBytes));
    const EvaluationState state = evaluation_state_of(json, -1);
    return state.step == step ? std::optional(state) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// Does rank 0's part of read_evaluation(). Returns nothing if the result of read_evaluation() must be `saved`.
std::optional<EvaluationState> take(const std::string& checkpoints, int64_t step) {
  try {
    std::optional<Directory> folder = Directory::open_if_there(posix_io(), checkpoints);
    if (!folder || !folder->exists(kName)) return std::nullopt;
    std::optional<EvaluationState> state = state_in(*folder, step);
    if (!state) folder->remove(kName);
    return state;
  } catch (const IoError& error) {
    log(LogLevel::kWarning, concat("an evaluation may be made again: ", error.what()));
    return std::nullopt;
  }
}

}  // namespace

nlohmann::json EvaluationState::to_json() const {
  return {{"evaluated", step},
          {"best", std::isfinite(best) ? nlohmann::json(best) : nlohmann::json()},
          {"without_progress", without_progress}};
}

EvaluationState evaluation_state_of(const nlohmann::json& saved, int64_t step) {
  EvaluationState state;
  state.step = saved.value("evaluated", step);
  if (saved.at("best").is_number()) state.best = saved.at("best").get<double>();
  state.without_progress = saved.at("without_progress").get<int64_t>();
  return state;
}

void write_evaluation(const std::string& checkpoints, const EvaluationState& state) {
  try {
    Directory folder = Directory::create(posix_io(), checkpoints);
    write_small_file(folder, kName, state.to_json().dump() + "\n");
  } catch (const IoError& error) {
    log(LogLevel::kWarning, concat("a run that goes on from this checkpoint will evaluate it again: ", error.what()));
  }
}

EvaluationState read_evaluation(const std::string& checkpoints, int64_t step, const EvaluationState& saved,
                                World& world) {
  std::array<int64_t, 3> all{};
  if (world.rank() == 0) {
    const EvaluationState state = take(checkpoints, step).value_or(saved);
    all = {state.step, std::bit_cast<int64_t>(state.best), state.without_progress};
  }
  Comm& comm = world.all().host();
  comm.broadcast({all.data(), static_cast<int64_t>(all.size()), DType::kOther8}, 0, "evaluation")->wait();
  return {all[0], std::bit_cast<double>(all[1]), all[2]};
}

}  // namespace zeroshard
