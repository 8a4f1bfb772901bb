#include "zeroshard/engine.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "bindings.h"
#include "zeroshard/error.h"
#include "zeroshard/meeting.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

// An engine with the communicators it needs, in the order in which they must die.
struct OwningEngine {
  OwningEngine() = default;
  // Threads that end with it may need the interpreter's lock.
  ~OwningEngine() {
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check() != 0) released.emplace();
    engine.reset();
    world.reset();
  }
  OwningEngine(const OwningEngine&) = delete;
  OwningEngine& operator=(const OwningEngine&) = delete;

  std::unique_ptr<World> world;
  std::unique_ptr<Engine> engine;
};

// A group that torch.distributed registered; "" is none. Names, so that no pybind type crosses.
World::Group find_group(const std::string& name) {
  return name.empty() ? World::Group() : c10d::resolve_process_group(name);
}

std::unique_ptr<OwningEngine> make_engine(std::vector<UnitDefinition> units, EngineOptions options,
                                          const std::string& gather_group, const std::string& reduce_group,
                                          const std::string& checkpoint_group, Meeting* meeting) {
  auto owner = std::make_unique<OwningEngine>();
  owner->world = std::make_unique<World>(options.config, options.device, find_group(gather_group),
                                         find_group(reduce_group), find_group(checkpoint_group), meeting);
  options.observer = owner->world->observer();
  owner->engine = std::make_unique<Engine>(std::move(units), std::move(options), owner->world->gather(),
                                           owner->world->reduce(), owner->world->checkpoint());
  return owner;
}

at::ScalarType scalar_type(const py::object& dtype) {
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

// What a Python callback raised, in the core's terms, so that it is told to every rank and not taken for damage of a
// file.
[[noreturn]] void throw_as_own(const py::error_already_set& error) {
  const py::gil_scoped_acquire gil;
  const auto text_of = [](const py::handle& value) {
    const auto bytes =
        py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(py::str(value).ptr(), "utf-8", "backslashreplace"));
    return std::string(bytes);
  };
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

// A path may hold bytes that are no UTF-8.
std::vector<std::pair<std::string, py::object>> half_loaded(const OwningEngine& owner) {
  std::vector<std::pair<std::string, py::object>> result;
  for (const auto& [param, path] : owner.engine->half_loaded()) {
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
      .value("ADAGRAD", OptimizerConfig::Type::kAdagrad);
  py::class_<ParamGroupOptions>(m, "ParamGroupOptions", "Hyper-parameters of one param group.")
      .def(py::init<>())
      .def_readwrite("lr", &ParamGroupOptions::lr)
      .def_readwrite("weight_decay", &ParamGroupOptions::weight_decay)
      .def_readwrite("beta1", &ParamGroupOptions::beta1)
      .def_readwrite("beta2", &ParamGroupOptions::beta2)
      .def_readwrite("eps", &ParamGroupOptions::eps)
      .def_readwrite("momentum", &ParamGroupOptions::momentum)
      .def_readwrite("dampening", &ParamGroupOptions::dampening)
      .def_readwrite("lr_decay", &ParamGroupOptions::lr_decay)
      .def_readwrite("nesterov", &ParamGroupOptions::nesterov)
      .def_readwrite("maximize", &ParamGroupOptions::maximize)
      .def_readwrite("bias_correction", &ParamGroupOptions::bias_correction)
      .def_readwrite("decoupled_weight_decay", &ParamGroupOptions::decoupled_weight_decay);
}

void bind_definitions(py::module_& m) {
  py::class_<ParamDefinition>(m, "ParamDefinition")
      .def(py::init([](std::vector<std::string> names, std::vector<int64_t> shape, const py::object& dtype,
                       bool requires_grad, int param_group) {
             return ParamDefinition{std::move(names), std::move(shape), scalar_type(dtype), requires_grad, param_group};
           }),
           py::arg("names"), py::arg("shape"), py::arg("dtype"), py::arg("requires_grad"), py::arg("param_group"));
  py::class_<UnitDefinition>(m, "UnitDefinition")
      .def(py::init([](std::string name, std::vector<ParamDefinition> params, int parent,
                       std::function<std::vector<std::vector<at::Tensor>>()> tensors) {
             return UnitDefinition{std::move(name), std::move(params), parent, std::move(tensors)};
           }),
           py::arg("name"), py::arg("params"), py::arg("parent"), py::arg("tensors"));
  py::class_<EngineOptions>(m, "EngineOptions")
      .def(py::init<>())
      .def_readwrite("config", &EngineOptions::config)
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

}  // namespace

void bind_engine(py::module_& m) {
  bind_param_groups(m);
  bind_definitions(m);
  bind_checkpoints(m);
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<OwningEngine>(m, "Engine", "Trains parameters whose states are sharded across a process group.")
      .def(py::init(&make_engine), py::arg("units"), py::arg("options"), py::kw_only(), py::arg("gather_group"),
           py::arg("reduce_group"), py::arg("checkpoint_group"), py::arg("meeting") = nullptr, Release())
      .def(
          "begin_forward", [](OwningEngine& o, bool training) { o.engine->begin_forward(training); }, Release())
      .def(
          "pre_forward", [](OwningEngine& o, size_t unit) { o.engine->pre_forward(unit); }, Release())
      .def(
          "post_forward",
          [](OwningEngine& o, size_t unit, const std::vector<at::Tensor>& outputs) {
            return o.engine->post_forward(unit, outputs);
          },
          "Whether an output is memory of the unit, which then is whole until the caller's own forward has ended.",
          Release())
      .def(
          "scale_loss",
          [](OwningEngine& o, const at::Tensor& loss, int64_t micro_batches) {
            return o.engine->scale_loss(loss, micro_batches);
          },
          py::arg("loss"), py::arg("micro_batches"))
      .def(
          "begin_backward", [](OwningEngine& o, bool sync) { o.engine->begin_backward(sync); }, Release())
      .def(
          "end_backward", [](OwningEngine& o) { o.engine->end_backward(); }, Release())
      .def(
          "fail_backward", [](OwningEngine& o, const std::string& reason) { o.engine->fail_backward(reason); },
          Release())
      .def(
          "zero_grad", [](OwningEngine& o) { o.engine->zero_grad(); }, Release())
      .def_property_readonly("discards", [](OwningEngine& o) { return o.engine->discards(); })
      .def(
          "step", [](OwningEngine& o, const std::vector<ParamGroupOptions>& groups) { return o.engine->step(groups); },
          Release())
      .def(
          "prepare_step", [](OwningEngine& o) { return o.engine->prepare_step(); }, Release())
      .def("slices", [](OwningEngine& o) { return o.engine->slices(); })
      .def(
          "finish_step", [](OwningEngine& o, const StepResult& result) { o.engine->finish_step(result); }, Release())
      .def(
          "gather",
          [](OwningEngine& o, const std::vector<size_t>& units, bool to_modify, bool can_drop) {
            o.engine->gather(units, to_modify, can_drop);
          },
          Release())
      .def_readonly_static("READ_ONLY", &Engine::kReadOnly)
      .def_readonly_static("DROP_WRITES", &Engine::kDropWrites)
      .def("set_updates",
           [](OwningEngine& o, const std::string& param, int64_t updates) { o.engine->set_updates(param, updates); })
      .def(
          "release",
          [](OwningEngine& o, const std::vector<size_t>& units, int modify_rank) {
            o.engine->release(units, modify_rank);
          },
          Release())
      .def(
          "return_unit", [](OwningEngine& o, size_t unit) { o.engine->return_unit(unit); }, Release(),
          "Makes the unit's parameters ordinary tensors again. Collective at stage 3; no more training afterwards.")
      .def("abort", [](OwningEngine& o, const std::string& reason) { o.world->abort(reason); })
      .def_property_readonly("loss_scale", [](OwningEngine& o) { return o.engine->loss_scale(); })
      .def_property_readonly("skipped_in_a_row", [](OwningEngine& o) { return o.engine->skipped_in_a_row(); })
      .def_property_readonly("num_units", [](OwningEngine& o) { return o.engine->num_units(); })
      .def(
          "is_replicated", [](OwningEngine& o, size_t unit) { return o.engine->is_replicated(unit); },
          "Whether every rank keeps all of the unit's parameters.")
      .def_property_readonly("transport", [](OwningEngine& o) { return std::string(o.world->transport()); })
      .def_property_readonly(
          "transports", [](OwningEngine& o) { return o.world->transports(); },
          "Of gathers, reductions and checkpoints.")
      .def(
          "memory",
          [](OwningEngine& o) {
            std::vector<std::tuple<std::string, int64_t, int64_t>> lines;
            for (const MemoryLine& line : o.engine->memory())
              lines.emplace_back(line.category, line.planned, line.measured_peak);
            return lines;
          },
          "(category, planned bytes, measured peak) per category.")
      .def_static("kept_memory", &Engine::kept_memory, "Bytes of freed CPU tensors kept for the next step.")
      .def(
          "save_weights",
          [](OwningEngine& o, const std::string& directory, const std::string& name, bool exclude_frozen,
             const std::vector<TensorState>& buffers) {
            o.engine->save_weights(directory, name, exclude_frozen, buffers);
          },
          py::arg("directory"), py::arg("name"), py::kw_only(), py::arg("exclude_frozen"), py::arg("buffers"),
          Release())
      .def("request_stop", [](OwningEngine& o) { o.engine->request_stop(); })
      .def(
          "save_checkpoint",
          [](OwningEngine& o, const std::string& root, const std::string& tag, int64_t step,
             const CheckpointContents& contents, bool latest, bool exclude_frozen) {
            o.engine->save_checkpoint(root, tag, step, contents, {latest, exclude_frozen});
          },
          py::arg("root"), py::arg("tag"), py::arg("step"), py::arg("contents"), py::kw_only(), py::arg("latest"),
          py::arg("exclude_frozen"), Release())
      .def(
          "wait_for_checkpoint", [](OwningEngine& o) { return o.engine->wait_for_checkpoint(); }, Release())
      .def(
          "report_failed_save", [](OwningEngine& o) { o.engine->report_failed_save(); }, Release())
      .def(
          "together",
          [](OwningEngine& o, const std::function<void()>& step) { o.engine->run_together(with_own_errors(step)); },
          Release())
      .def_property_readonly("half_loaded", &half_loaded)
      .def_property_readonly("has_pending_gradients", [](OwningEngine& o) { return o.engine->has_pending_gradients(); })
      .def(
          "load_checkpoint",
          [](OwningEngine& o, const std::string& root, const std::optional<std::string>& tag, bool strict,
             bool all_params, bool optimizer, const ChooseTensors& others,
             const std::function<void(const std::string&)>& accept,
             const std::function<void(const LoadedState&)>& finish, const std::vector<std::string>& takes) {
            const LoadOptions options{
                tag, strict, all_params, optimizer, with_own_errors(accept), with_own_errors(finish), takes};
            return o.engine->load_checkpoint(root, options, with_own_errors(others));
          },
          py::arg("root"), py::kw_only(), py::arg("tag"), py::arg("strict"), py::arg("all_params"),
          py::arg("optimizer"), py::arg("others"), py::arg("accept"), py::arg("finish"), py::arg("takes"), Release());
}

}  // namespace zeroshard
