#include "train/run_data.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace zeroshard {
namespace {

using Part = DatasetOptions::Part;

DatasetOptions rows_of(const TrainOptions& options, const CausalLM& model, Part part) {
  DatasetOptions rows = options.rows;
  rows.part = part;
  rows.vocab_size = model.vocab_size();
  rows.shuffle = rows.shuffle && part == Part::kTraining;
  if (!options.validation_data.empty() && part == Part::kValidation) {
    rows.part = Part::kTraining;  // all rows of these files are for validation
    rows.validation_share = 0;
  }
  return rows;
}

// Returns whether one of the first `rows` rows has a target. There can be none, because a document of one token has no
// next token, and because a mask can hide all targets.
bool has_targets(Dataset& data, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    const TokenRow row = data.row(i);
    if (std::any_of(row.targets.begin(), row.targets.end(), [](int32_t target) { return target != kNoTarget; }))
      return true;
  }
  return false;
}

constexpr const char* kNoTargets =
    "has a token to predict: documents of one token have none, and neither have tokens that a mask hides. ";

}  // namespace

std::unique_ptr<Dataset> training_data(const TrainOptions& options, const CausalLM& model) {
  return std::make_unique<Dataset>(options.data, rows_of(options, model, Part::kTraining));
}

std::unique_ptr<Dataset> validation_data(const TrainOptions& options, const CausalLM& model) {
  const bool own_files = !options.validation_data.empty();
  if (!own_files && options.rows.validation_share == 0) return nullptr;
  return std::make_unique<Dataset>(own_files ? options.validation_data : options.data,
                                   rows_of(options, model, Part::kValidation));
}

int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size, const RowsDone& done) {
  constexpr int64_t kMostRows = int64_t{1} << 53;  // a double can represent every integer up to this
  if (options.steps > 0) {
    ZS_CHECK(options.steps <= kMostRows / batch_size, "train.steps is ", options.steps, ", of ", batch_size,
             " rows each: a run may have 2^53 rows at most. Give fewer steps");
    return options.steps;
  }
  const double rows = options.epochs * static_cast<double>(training.rows_in_epoch(0));
  ZS_CHECK(rows <= static_cast<double>(kMostRows), "train.epochs is ", options.epochs, ", which are ", rows,
           " rows: a run may have 2^53 at most. Give fewer epochs");
  const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(std::ceil(rows)) - done.rows);
  return std::max<int64_t>(1, done.steps + (left + batch_size - 1) / batch_size);
}

std::string check_targets(const TrainOptions& options, int64_t batch_size, int64_t steps, Dataset& training,
                          Dataset* validation) {
  const bool evaluated = options.evaluate_every > 0;
  ZS_CHECK(!evaluated || validation, "train.evaluation.every is ", options.evaluate_every,
           ", but there is nothing to evaluate on: give train.data.validation or train.data.validation_share");
  ZS_CHECK(options.patience == 0 || evaluated, "train.evaluation.patience is ", options.patience,
           ", but there are no evaluations to end the run early: give train.evaluation.every, or leave patience out");
  const int64_t rows = std::min(training.rows_in_epoch(0), steps * batch_size);
  ZS_CHECK(has_targets(training, rows), "none of the run's ", rows, " rows of train.data.train ", kNoTargets,
           "Give longer documents, or leave more of them unmasked");
  if (!validation || has_targets(*validation, rows_of_evaluation(options, *validation))) return "";
  const std::string missing = concat("none of the ", rows_of_evaluation(options, *validation),
                                     " rows of an evaluation (train.data.validation, .validation_share, "
                                     "train.evaluation.rows) ",
                                     kNoTargets);
  ZS_CHECK(options.patience == 0, missing, "train.evaluation.patience cannot end the run early without them");
  return missing + "There will be no validation loss";
}

int64_t rows_of_evaluation(const TrainOptions& options, Dataset& validation) {
  const int64_t all = validation.rows_in_epoch(0);
  return options.evaluation_rows > 0 ? std::min(options.evaluation_rows, all) : all;
}

}  // namespace zeroshard
