#include "zeroshard/engine.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings.h"
#include "process_groups.h"
#include "zeroshard/error.h"
#include "zeroshard/meeting.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

using EngineHolder = WithoutLock<Engine>;

EngineHolder make_engine(std::vector<UnitDefinition> units, EngineOptions options, const std::string& gather_group,
                         const std::string& reduce_group, const std::string& checkpoint_group, Meeting* meeting) {
  auto world = std::make_unique<World>(options.config, options.device, find_group(gather_group),
                                       find_group(reduce_group), find_group(checkpoint_group), meeting);
  return EngineHolder(new Engine(std::move(units), std::move(options), std::move(world)));
}

at::ScalarType scalar_type(const py::object& dtype) {
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

// Returns the variable that holds the last interrupt, or None if there is none. An interrupt is an exception such as
// KeyboardInterrupt, which is not an `Exception`, and which a Python callback raised. Callers must hold the
// interpreter's lock (the GIL). The variable is never destroyed, because the interpreter can be gone when the process
// exits.
py::object& kept_interrupt() {
  static auto* const kept = new py::object(py::none());
  return *kept;
}

// Throws an error of the core in place of an error that a Python callback raised: StateError for StateError, ValueError
// for all others. An interrupt is also kept for take_interrupt(). The core sends the text and the type of its own
// errors to every rank. It would turn any other exception into an IoError, and code that reads a checkpoint would then
// take the file for damaged.
[[noreturn]] void throw_as_own(const py::error_already_set& error) {
  const py::gil_scoped_acquire gil;
  const auto text_of = [](const py::handle& value) {
    const auto bytes =
        py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(py::str(value).ptr(), "utf-8", "backslashreplace"));
    return std::string(bytes);
  };
  if (!error.matches(PyExc_Exception)) kept_interrupt() = error.value();
  const std::string text = text_of(error.value());
  if (error.matches(PyExc_ValueError)) throw ValueError(text);
  if (error.matches(py::module_::import("zeroshard._C").attr("StateError"))) throw StateError(text);
  throw ValueError(text_of(error.type().attr("__name__")) + ": " + text);
}

template <typename Result, typename... Args>
std::function<Result(Args...)> with_own_errors(std::function<Result(Args...)> callback) {
  if (!callback) return callback;
  return [callback = std::move(callback)](Args... args) -> Result {
    try {
      return callback(std::forward<Args>(args)...);
    } catch (const py::error_already_set& error) {
      throw_as_own(error);
    }
  };
}

// Returns the last interrupt that a callback raised in this process, and forgets it. Returns None if there was none
// since the last call.
py::object take_interrupt() {
  return std::exchange(kept_interrupt(), py::none());
}

// Returns the parameters that a failed load left half loaded, each with the path of the checkpoint that was partly
// read. In a path, replaces bytes that are not UTF-8 by escapes.
std::vector<std::pair<std::string, py::object>> half_loaded(const Engine& engine) {
  std::vector<std::pair<std::string, py::object>> result;
  for (const auto& [param, path] : engine.half_loaded()) {
    auto* const text = PyUnicode_DecodeUTF8(path.data(), Py_ssize_t(path.size()), "backslashreplace");
    result.emplace_back(param, py::reinterpret_steal<py::object>(text));
  }
  return result;
}

void bind_param_groups(py::module_& m) {
  py::enum_<OptimizerConfig::Type>(m, "OptimizerType")
      .value("ADAM", OptimizerConfig::Type::kAdam)
      .value("ADAMW", OptimizerConfig::Type::kAdamW)
      .value("SGD", OptimizerConfig::Type::kSgd)
      .value("LION", OptimizerConfig::Type::kLion)
      .value("ADAGRAD", OptimizerConfig::Type::kAdagrad)
      .value("MUON", OptimizerConfig::Type::kMuon);
  py::class_<ParamGroupOptions> options(m, "ParamGroupOptions", "Hyper-parameters of one param group.");
  options.def(py::init<>());
  py::list fields;
  ParamGroupOptions::for_each([&](const char* name, auto member) {
    options.def_readwrite(name, member);
    fields.append(name);
  });
  options.attr("FIELDS") = py::tuple(fields);
}

void bind_definitions(py::module_& m) {
  py::class_<ParamDefinition>(m, "ParamDefinition")
      .def(py::init([](std::vector<std::string> names, std::vector<int64_t> shape, const py::object& dtype,
                       bool requires_grad, int param_group, bool packed, bool keeps_fp32_moments) {
             return ParamDefinition{std::move(names), std::move(shape), scalar_type(dtype), requires_grad,
                                    param_group,      packed,           keeps_fp32_moments};
           }),
           py::arg("names"), py::arg("shape"), py::arg("dtype"), py::arg("requires_grad"), py::arg("param_group"),
           py::arg("packed"), py::arg("keeps_fp32_moments") = false);
  py::class_<UnitDefinition>(m, "UnitDefinition")
      .def(py::init([](std::string name, std::vector<ParamDefinition> params, int parent,
                       std::function<std::vector<std::vector<at::Tensor>>()> tensors) {
             return UnitDefinition{std::move(name), std::move(params), parent, std::move(tensors)};
           }),
           py::arg("name"), py::arg("params"), py::arg("parent"), py::arg("tensors"));
  py::class_<EngineOptions>(m, "EngineOptions")
      .def(py::init<>())
      .def_readwrite("config", &EngineOptions::config)
      .def("store_moments_as_codes", [](EngineOptions& o) { o.config.moment_dtype = kCodes; })
      .def_readwrite("device", &EngineOptions::device)
      .def_readwrite("param_groups", &EngineOptions::param_groups)
      .def_readwrite("optimizer", &EngineOptions::optimizer)
      .def_readwrite("external_optimizer", &EngineOptions::external_optimizer)
      .def_readwrite("agreement", &EngineOptions::agreement)
      .def_readwrite("buffers", &EngineOptions::buffers);
  py::class_<StepResult>(m, "StepResult")
      .def_readonly("applied", &StepResult::applied)
      .def_readonly("grad_norm", &StepResult::grad_norm)
      .def_readonly("loss_scale", &StepResult::loss_scale)
      .def_readonly("stop", &StepResult::stop)
      .def_readonly("save_failed", &StepResult::save_failed);
  py::class_<OptimizerSlice>(m, "OptimizerSlice")
      .def_readonly("param", &OptimizerSlice::param)
      .def_readonly("param_group", &OptimizerSlice::param_group)
      .def_readonly("master", &OptimizerSlice::master)
      .def_readonly("has_grad", &OptimizerSlice::has_grad)
      .def_readonly("grad", &OptimizerSlice::grad)
      .def_readonly("moments", &OptimizerSlice::moments)
      .def_readonly("shape", &OptimizerSlice::shape)
      .def_readonly("begin", &OptimizerSlice::begin);
}

void bind_checkpoints(py::module_& m) {
  py::class_<TensorState>(m, "TensorState")
      .def(py::init(
               [](std::string name, std::string kind, at::Tensor tensor, std::vector<int64_t> shape, int64_t begin) {
                 return TensorState{std::move(name), std::move(kind), std::move(tensor), std::move(shape), begin};
               }),
           py::arg("name"), py::arg("kind"), py::arg("tensor"), py::arg("shape"), py::arg("begin") = 0);
  py::class_<TensorInfo>(m, "TensorInfo")
      .def_readonly("name", &TensorInfo::name)
      .def_readonly("kind", &TensorInfo::kind)
      .def_readonly("dtype", &TensorInfo::dtype)
      .def_readonly("shape", &TensorInfo::shape);
  py::class_<CheckpointContents>(m, "CheckpointContents")
      .def(py::init([](std::string state, std::string rank_state, std::vector<TensorState> buffers,
                       std::vector<TensorState> optimizer) {
             return CheckpointContents{std::move(state), std::move(rank_state), std::move(buffers),
                                       std::move(optimizer)};
           }),
           py::kw_only(), py::arg("state"), py::arg("rank_state"), py::arg("buffers"), py::arg("optimizer"));
  py::class_<LoadedState>(m, "LoadedState")
      .def_readonly("tag", &LoadedState::tag)
      .def_readonly("step", &LoadedState::step)
      .def_readonly("state", &LoadedState::state)
      .def_readonly("rank_states", &LoadedState::rank_states);
}

void bind_progress(py::module_& m) {
  py::class_<BatchSize>(m, "BatchSize", "How many samples a step takes.")
      .def_readonly("micro", &BatchSize::micro, "Samples of one rank in one micro-batch.")
      .def_readonly("accumulation", &BatchSize::accumulation, "Micro-batches of a step.")
      .def_readonly("world_size", &BatchSize::world_size)
      .def_property_readonly("train", &BatchSize::train, "Samples of all ranks in a step.");
  py::class_<Progress>(m, "Progress", "How far training has come. Setting a count makes training go on from it.")
      .def("__copy__", [](const Progress& progress) { return progress; })
      .def_readwrite("global_steps", &Progress::global_steps)
      .def_readwrite("skipped_steps", &Progress::skipped_steps)
      .def_readwrite("micro_steps", &Progress::micro_steps)
      .def_readwrite("global_samples", &Progress::global_samples)
      .def_readonly("batch", &Progress::batch)
      .def_readwrite("boundary", &Progress::boundary,
                     "Whether the step ends, as the caller says. None: the engine counts micro-batches.")
      .def_property_readonly("is_boundary", &Progress::is_boundary,
                             "Whether the current micro-batch is the last of its step.")
      .def("counts", &Progress::counts, "The counts, under the names that they have in checkpoints.");
}

using Release = py::call_guard<py::gil_scoped_release>;
using EngineClass = py::class_<Engine, EngineHolder>;

void bind_passes(EngineClass& engine) {
  engine.def("begin_forward", &Engine::begin_forward, Release())
      .def("pre_forward", &Engine::pre_forward, Release())
      .def("post_forward", &Engine::post_forward,
           "Returns whether an output is memory of the unit. If so, the unit stays whole until the caller's own "
           "forward ends.",
           Release())
      .def("is_in_backward", &Engine::is_in_backward)
      .def("scale_loss", py::overload_cast<const at::Tensor&>(&Engine::scale_loss, py::const_), py::arg("loss"))
      .def("scale_loss", py::overload_cast<const at::Tensor&, int64_t>(&Engine::scale_loss, py::const_),
           py::arg("loss"), py::arg("micro_batches"))
      .def("begin_backward", &Engine::begin_backward, Release())
      .def("end_backward", &Engine::end_backward, Release())
      .def("fail_backward", &Engine::fail_backward, Release())
      .def_property_readonly("backward_comm_error", &Engine::backward_comm_error)
      .def_property_readonly("backward_io_error", &Engine::backward_io_error)
      .def("await_readers_of_master_weights", &Engine::await_readers_of_master_weights, Release())
      .def("publish_master_weights", &Engine::publish_master_weights, Release())
      .def("scale", &Engine::scale, py::arg("loss"))
      .def("zero_grad", &Engine::zero_grad, Release())
      .def("end_micro_batch", &Engine::end_micro_batch)
      .def("step", py::overload_cast<const std::vector<ParamGroupOptions>&>(&Engine::step), Release())
      .def("prepare_step", &Engine::prepare_step, py::arg("groups") = std::vector<ParamGroupOptions>{}, Release())
      .def("slices", &Engine::slices, Release())
      .def("finish_step", &Engine::finish_step, Release())
      .def("set_updates", &Engine::set_updates)
      .def("set_moment", &Engine::set_moment, py::arg("param"), py::arg("slot"), py::arg("values"), Release())
      .def_property_readonly("has_pending_gradients", &Engine::has_pending_gradients)
      .def_property_readonly(
          "has_plain_gradients", &Engine::has_plain_gradients,
          "Whether a loss.backward() without engine.backward() has made gradients since the last step.")
      .def("request_stop", &Engine::request_stop)
      .def_property_readonly("loss_scale", &Engine::loss_scale)
      .def_property_readonly("skipped_in_a_row", &Engine::skipped_in_a_row);
}

void bind_kept_tensors(py::module_& m, EngineClass& engine) {
  py::class_<KeptTensor, std::shared_ptr<KeptTensor>>(
      m, "KeptTensor", "A tensor that was moved to the host or to a file until it is needed.")
      .def("bring_back", &KeptTensor::bring_back, Release());
  engine.def("keep", &Engine::keep, Release(), py::arg("tensor"))
      .def_property_readonly("keeps_tensors", &Engine::keeps_tensors);
}

void bind_param_states(EngineClass& engine) {
  engine.def("slice", &Engine::slice, py::arg("unit"), py::arg("param"), Release())
      .def("full_state", &Engine::full_state, py::arg("unit"), py::arg("param"), py::arg("mine"), py::arg("kind"),
           Release())
      .def("local_grad", &Engine::local_grad, py::arg("unit"), py::arg("param"))
      .def("full_grad", &Engine::full_grad, py::arg("unit"), py::arg("param"), Release())
      .def("grad_norms", &Engine::grad_norms, Release())
      .def("set_grad", &Engine::set_grad, py::arg("unit"), py::arg("param"), py::arg("begin"), py::arg("values"))
      .def("set_weights", &Engine::set_weights, py::arg("unit"), py::arg("param"), py::arg("begin"), py::arg("values"),
           Release())
      .def("local_param", &Engine::local_param, py::arg("unit"), py::arg("param"), Release())
      .def("updates", &Engine::updates);
}

void bind_counts(EngineClass& engine) {
  engine.def_property_readonly("progress", py::overload_cast<>(&Engine::progress))
      .def_property_readonly("progress_at_last_step", &Engine::progress_at_last_step)
      .def("restore_progress", &Engine::restore_progress, py::arg("saved"), py::arg("step"))
      .def("set_train_batch_size", &Engine::set_train_batch_size)
      .def("set_micro_batch_size", &Engine::set_micro_batch_size);
}

void bind_units(EngineClass& engine) {
  engine.def_readonly_static("READ_ONLY", &Engine::kReadOnly)
      .def_readonly_static("DROP_WRITES", &Engine::kDropWrites)
      .def("gather", &Engine::gather, Release())
      .def("release", &Engine::release, Release())
      .def("publish_update", &Engine::publish_update, py::arg("ends") = false, Release())
      .def("return_unit", &Engine::return_unit, Release(),
           "Makes the unit's parameters ordinary tensors again. After that the engine cannot train. Collective at "
           "stage 3.")
      .def_property_readonly("num_units", &Engine::num_units)
      .def("is_replicated", &Engine::is_replicated, Release(), "Whether every rank keeps all of the unit's parameters.")
      .def("abort", [](Engine& engine, const std::string& reason) { engine.world()->abort(reason); })
      .def_property_readonly("transport", [](Engine& engine) { return std::string(engine.world()->transport()); })
      .def_property_readonly(
          "transports", [](Engine& engine) { return engine.world()->transports(); },
          "The transports of gathers, reductions and checkpoints.")
      .def(
          "memory",
          [](const Engine& engine) {
            std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> lines;
            for (const MemoryLine& line : engine.memory())
              lines.emplace_back(line.category, line.tier, line.planned, line.measured_peak);
            return lines;
          },
          "(category, tier, planned bytes, measured peak) per category and tier.")
      .def_static("kept_memory", &Engine::kept_memory, "Bytes of freed CPU tensors kept for the next step.");
}

void bind_saving(EngineClass& engine) {
  engine
      .def("save_weights", &Engine::save_weights, py::arg("directory"), py::arg("name"), py::kw_only(),
           py::arg("exclude_frozen"), py::arg("buffers"), Release())
      .def(
          "save_checkpoint",
          [](Engine& engine, const std::string& root, const std::string& tag, int64_t step,
             const CheckpointContents& contents, bool latest, bool exclude_frozen, std::optional<bool> async) {
            engine.save_checkpoint(root, tag, step, contents, {latest, exclude_frozen, async});
          },
          py::arg("root"), py::arg("tag"), py::arg("step"), py::arg("contents"), py::kw_only(), py::arg("latest"),
          py::arg("exclude_frozen"), py::arg("in_background") = std::nullopt, Release())
      .def("wait_for_checkpoint", &Engine::wait_for_checkpoint, Release())
      .def("report_failed_save", &Engine::report_failed_save, Release())
      .def(
          "together",
          [](Engine& engine, const std::function<void()>& step, const std::string& call) {
            engine.run_together(call, with_own_errors(step));
          },
          py::arg("step"), py::arg("call"), Release())
      .def("differ_among_ranks", &Engine::differ_among_ranks, py::arg("tensors"), Release())
      .def_property_readonly("half_loaded", &half_loaded)
      .def(
          "load_checkpoint",
          [](Engine& engine, const std::string& root, const std::optional<std::string>& tag, bool strict,
             bool all_params, bool optimizer, const ChooseTensors& others,
             const std::function<void(const std::string&)>& accept,
             const std::function<void(const LoadedState&)>& finish, const std::vector<std::string>& takes) {
            const LoadOptions options{tag,
                                      strict,
                                      all_params,
                                      optimizer,
                                      /*may_be_first=*/false,
                                      with_own_errors(accept),
                                      with_own_errors(finish),
                                      takes};
            return engine.load_checkpoint(root, options, with_own_errors(others));
          },
          py::arg("root"), py::kw_only(), py::arg("tag"), py::arg("strict"), py::arg("all_params"),
          py::arg("optimizer"), py::arg("others"), py::arg("accept"), py::arg("finish"), py::arg("takes"), Release());
}

}  // namespace

void bind_engine(py::module_& m) {
  m.def(
      "take_interrupt", &take_interrupt,
      "Returns the exception that last interrupted a callback, such as KeyboardInterrupt, and forgets it; else None.");
  bind_param_groups(m);
  bind_definitions(m);
  bind_checkpoints(m);
  bind_progress(m);
  m.def("check_apart", &check_apart, py::arg("params"));
  m.def("set_buffer", &set_buffer, py::arg("buffer"), py::arg("values"));
  m.def("restore_random_state", &restore_random_state, py::arg("rank_states"), py::arg("rank"));
  EngineClass engine(m, "Engine", "Trains parameters whose states are sharded across a process group.");
  engine.def(py::init(&make_engine), py::arg("units"), py::arg("options"), py::kw_only(), py::arg("gather_group"),
             py::arg("reduce_group"), py::arg("checkpoint_group"), py::arg("meeting") = nullptr, Release());
  bind_passes(engine);
  bind_kept_tensors(m, engine);
  bind_param_states(engine);
  bind_counts(engine);
  bind_units(engine);
  bind_saving(engine);
}

}  // namespace zeroshard
