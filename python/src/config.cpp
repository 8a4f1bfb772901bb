#include "zeroshard/config.h"

#include <pybind11/stl.h>

#include "bindings.h"
#include "config/keys.h"
#include "layout/matrix_owners.h"
#include "optim/lr_schedule.h"
#include "zeroshard/error.h"
#include "zeroshard/optimizer.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard {
namespace {

ConfigContext context(int world_size, std::optional<int64_t> hidden_size, std::optional<int> sequence_parallel_size) {
  ConfigContext result;
  result.world_size = world_size;
  // Takes ranks_per_host from the launcher's variables, but only if they describe `world_size` ranks. Otherwise
  // ranks_per_host stays 0, which means that it is not known. For example, torch.multiprocessing sets no such
  // variables, and rank_environment() then describes a single rank.
  try {
    if (const RankEnvironment ranks = rank_environment(); ranks.world_size == world_size)
      result.ranks_per_host = ranks.local_world_size;
  } catch (const ValueError&) {  // the variables are wrong, so ranks_per_host is not known either
  }
  result.sequence_parallel_size = sequence_parallel_size;
  result.hidden_size = hidden_size;
  return result;
}

py::list values_of(const ParsedConfig& parsed) {
  py::list values;
  for (const ConfigValue& value : parsed.values) values.append(py::make_tuple(value.path, value.value, value.origin));
  return values;
}

}  // namespace

void bind_config(py::module_& m) {
  py::class_<ParsedConfig>(m, "ParsedConfig", "A configuration with every default resolved.")
      .def_static(
          "parse",
          [](const std::string& text, int world_size, std::optional<int64_t> hidden_size,
             std::optional<int> sequence_parallel_size) {
            return parse_config(text, context(world_size, hidden_size, sequence_parallel_size));
          },
          py::arg("text"), py::kw_only(), py::arg("world_size"), py::arg("hidden_size") = std::nullopt,
          py::arg("sequence_parallel_size") = std::nullopt)
      .def_static(
          "load",
          [](const std::string& path, int world_size, std::optional<int64_t> hidden_size,
             std::optional<int> sequence_parallel_size) {
            return load_config(path, context(world_size, hidden_size, sequence_parallel_size));
          },
          py::arg("path"), py::kw_only(), py::arg("world_size"), py::arg("hidden_size") = std::nullopt,
          py::arg("sequence_parallel_size") = std::nullopt)
      .def_property_readonly("values", &values_of, "(path, value, origin) of every key.")
      .def_readonly("without_effect", &ParsedConfig::without_effect)
      .def_readonly("assumed", &ParsedConfig::assumed)
      .def_readonly("unknown", &ParsedConfig::unknown)
      .def("warning", &ParsedConfig::warning)
      .def_property_readonly("config", [](const ParsedConfig& parsed) { return parsed.config; });

  py::class_<Config>(m, "Config", "The resolved values; see include/zeroshard/config.h.")
      .def_readonly("train_batch_size", &Config::train_batch_size)
      .def_readonly("micro_batch_size", &Config::micro_batch_size)
      .def_readonly("shard_size", &Config::shard_size, "0: all ranks.")
      .def_readonly("sequence_parallel_size", &Config::sequence_parallel_size)
      .def_readonly("dataloader_drop_last", &Config::dataloader_drop_last)
      .def_readonly("grad_accumulation_steps", &Config::grad_accumulation_steps)
      .def_readonly("managed_accumulation", &Config::managed_accumulation)
      .def_readonly("gradient_clipping", &Config::gradient_clipping)
      .def_readonly("steps_per_print", &Config::steps_per_print)
      .def_readonly("wall_clock_breakdown", &Config::wall_clock_breakdown)
      .def_readonly("stage", &Config::stage)
      .def_readonly("unit_classes", &Config::unit_classes)
      .def_readonly("allow_untested_optimizer", &Config::allow_untested_optimizer)
      .def_readonly("timeout_ms", &Config::timeout_ms)
      .def_readonly("gather_16bit_weights_on_save", &Config::gather_16bit_weights_on_save)
      .def_readonly("tensorboard", &Config::tensorboard)
      .def_readonly("csv_monitor", &Config::csv_monitor)
      .def_readonly("wandb", &Config::wandb)
      .def_property_readonly("fp16_enabled", [](const Config& c) { return c.fp16.enabled; })
      .def_property_readonly("fp16_auto_cast", [](const Config& c) { return c.fp16.enabled && c.fp16.auto_cast; })
      .def_property_readonly("auto_cast",
                             [](const Config& c) {
                               return c.fp16.enabled ? c.fp16.auto_cast
                                                     : c.compute_dtype == DType::kBFloat16 && c.bf16_auto_cast;
                             })
      .def_property_readonly("compute_dtype", [](const Config& c) { return std::string(name_of(c.compute_dtype)); })
      .def_property_readonly(
          "reduction",
          [](const Config& c) { return c.reduction == Config::Reduction::kCanonical ? "canonical" : "native"; })
      .def_property_readonly("has_optimizer", [](const Config& c) { return c.optimizer.has_value(); })
      .def_property_readonly("autocast_dtype",
                             [](const Config& c) {
                               return c.autocast_dtype ? std::optional(std::string(name_of(*c.autocast_dtype)))
                                                       : std::nullopt;
                             })
      .def_property_readonly("has_scheduler", [](const Config& c) { return c.scheduler.has_value(); })
      .def_property_readonly(
          "scheduler_name",
          [](const Config& c) { return c.scheduler ? std::string(scheduler_names()[c.scheduler->index()]) : ""; },
          "The class of the schedule; \"\" without a schedule.")
      .def("optimizer_type", [](const Config& c) { return c.optimizer.value_or(OptimizerConfig{}).type; })
      .def(
          "param_group_options",
          [](const Config& c) { return ParamGroupOptions(c.optimizer.value_or(OptimizerConfig{})); },
          "Hyper-parameters of the configuration's optimizer.")
      .def(
          "muon_options",
          [](const Config& c, bool of_matrices) {
            return of_matrices ? c.optimizer.value().of_matrices() : c.optimizer.value().of_others();
          },
          py::arg("of_matrices"), "Hyper-parameters of Muon for matrices, or for the other parameters.")
      .def("lr_schedule",
           [](const Config& c, std::vector<double> lrs) { return LRSchedule(c.scheduler.value(), std::move(lrs)); });

  m.def(
      "is_hidden_matrix",
      [](const std::vector<std::string>& names, const std::vector<int64_t>& shape) {
        return is_hidden_matrix(names, shape);
      },
      py::arg("names"), py::arg("shape"), "Whether Muon orthogonalises a parameter with these names and this shape.");
  py::class_<MetricFilesConfig>(m, "MetricFilesConfig", "Where rank 0 writes metrics.")
      .def_readonly("enabled", &MetricFilesConfig::enabled)
      .def_readonly("output_path", &MetricFilesConfig::output_path)
      .def_readonly("job_name", &MetricFilesConfig::job_name);
  py::class_<WandbConfig>(m, "WandbConfig", "The run of Weights & Biases.")
      .def_readonly("enabled", &WandbConfig::enabled)
      .def_readonly("group", &WandbConfig::group)
      .def_readonly("team", &WandbConfig::team)
      .def_readonly("project", &WandbConfig::project);

  py::class_<LRSchedule>(m, "LRSchedule", "Learning rates as a function of the iteration.")
      .def("lrs", &LRSchedule::lrs, py::arg("iteration"))
      .def(
          "betas",
          [](const LRSchedule& schedule, int64_t iteration, size_t group) -> std::optional<std::pair<double, double>> {
            const auto betas = schedule.betas(iteration, group);
            if (!betas) return std::nullopt;
            return std::pair{betas->beta1, betas->beta2};
          },
          py::arg("iteration"), py::arg("group") = 0);
}

}  // namespace zeroshard
