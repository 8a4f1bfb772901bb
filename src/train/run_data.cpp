#include "train/run_data.h"

#include <algorithm>
#include <cmath>

namespace zeroshard {
namespace {

using Part = DatasetOptions::Part;

DatasetOptions rows_of(const TrainOptions& options, const CausalLM& model, Part part) {
  DatasetOptions rows = options.rows;
  rows.part = part;
  rows.vocab_size = model.vocab_size();
  rows.shuffle = rows.shuffle && part == Part::kTraining;
  if (!options.validation_data.empty() && part == Part::kValidation) {
    rows.part = Part::kTraining;  // these files are held out as a whole
    rows.validation_share = 0;
  }
  return rows;
}

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

int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size) {
  if (options.steps > 0) return options.steps;
  const double rows = options.epochs * static_cast<double>(training.rows_in_epoch(0));
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(rows / static_cast<double>(batch_size))));
}

}  // namespace zeroshard
