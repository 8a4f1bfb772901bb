#include <iomanip>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "train/made_model.h"
#include "train/model_directory.h"
#include "train/run_data.h"
#include "train/text_data.h"
#include "zeroshard/nn.h"
#include "zeroshard/plan.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard {
namespace {

ModelShapes shapes_of(const CausalLM& model, const Config& config) {
  ModelShapes shapes;
  ModuleUnits units(model, config.unit_classes);
  for (const UnitDefinition& unit : units.definitions()) {
    shapes.units.push_back({unit.name, {}});
    for (const ParamDefinition& param : unit.params) shapes.units.back().params.push_back({param.names, param.shape});
  }
  return shapes;
}

void describe_model(std::ostream& out, const TrainOptions& options, const CausalLM& model) {
  int64_t all = 0, trained = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  out << "model       " << options.model << (options.from_scratch ? ", from scratch" : "") << ": " << all
      << " parameters, " << trained << " trained\n";
}

void describe_data(std::ostream& out, Dataset& data, const char* what) {
  out << what << data.documents() << " documents, " << data.tokens() << " tokens, " << data.rows_in_epoch(0)
      << " rows an epoch\n";
}

// Frozen parameters count as trained ones: an upper bound.
void describe_memory(std::ostream& out, const CausalLM& model, const Config& config) {
  const PlannedBytes bytes = plan_model(shapes_of(model, config), plan_options(config));
  out << "memory      of each of " << config.world_size << " ranks at stage " << config.stage
      << ", activations aside: " << bytes.total() / 1e6 << " MB (";
  const std::pair<const char*, double> parts[] = {
      {"parameters ", bytes.parameters},           {", gradients ", bytes.gradients},
      {", master weights ", bytes.master_weights}, {", moments ", bytes.moments},
      {", gather ring ", bytes.gather_ring},       {", reduce ring ", bytes.reduce_ring}};
  for (const auto& [name, value] : parts) out << name << value / 1e6;
  out << ")";
  if (bytes.host.total() > 0) out << ", and " << bytes.host.total() / 1e6 << " MB of host memory";
  if (bytes.file.total() > 0) out << ", and " << bytes.file.total() / 1e6 << " MB in files";
  out << "\n";
}

void describe_row(std::ostream& out, const TrainOptions& options, Dataset& data) {
  constexpr size_t kShown = 16;
  const TokenRow row = data.row(0);
  out << "first row   ids";
  for (size_t i = 0; i < row.ids.size() && i < kShown; ++i) out << ' ' << row.ids[i];
  out << (row.ids.size() > kShown ? " ...\n" : "\n");
  try {
    out << load_tokenizer(options.model)->decode(row.ids, /*skip_special=*/false) << '\n';
  } catch (const Error&) {  // token files need no tokenizer
  }
}

}  // namespace

std::string describe_run(const TrainConfig& config) {
  TrainOptions options = config.train;
  check_output(options.model, options.output, options.checkpoints);
  tokenize_texts(options);
  const MadeModel made = make_model(options);
  values_of(options, *made.model);  // finds weights that are missing or have another shape
  const std::unique_ptr<Dataset> training = training_data(options, *made.model);
  const std::unique_ptr<Dataset> validation = validation_data(options, *made.model);
  const Config& own = config.engine.config;
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  describe_model(out, options, *made.model);
  describe_data(out, *training, "training    ");
  if (validation) describe_data(out, *validation, "validation  ");
  const int64_t steps = total_steps(options, *training, own.train_batch_size);
  const std::string warning = check_targets(options, own.train_batch_size, steps, *training, validation.get());
  if (!warning.empty()) out << "warning     " << warning << "\n";
  const auto rows = static_cast<double>(steps * own.train_batch_size);
  out << "steps       " << steps << " of " << own.train_batch_size << " rows of " << options.rows.length
      << " tokens: " << rows / static_cast<double>(training->rows_in_epoch(0)) << " epochs\n";
  describe_memory(out, *made.model, own);
  describe_row(out, options, *training);
  return out.str();
}

}  // namespace zeroshard
