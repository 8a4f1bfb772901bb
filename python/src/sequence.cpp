#include "zeroshard/sequence.h"

#include <pybind11/stl.h>

#include "bindings.h"
#include "comm_c10d/make_comm.h"
#include "process_groups.h"
#include "zeroshard/config.h"

namespace zeroshard {
namespace {

CommOptions options_of(const Config* config, int first_rank) {
  using Transport = CommOptions::Transport;
  CommOptions options;
  options.numbers.first = first_rank;
  if (config == nullptr) return options;
  if (config->transport == Config::Transport::kShm) options.transport = Transport::kShm;
  if (config->transport == Config::Transport::kProcessGroup) options.transport = Transport::kProcessGroup;
  options.timeout_ms = config->timeout_ms;
  options.stall_timeout_ms = config->stall_timeout_ms;
  return options;
}

}  // namespace

void bind_sequence(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<SequenceGroup, WithoutLock<SequenceGroup>>(
      m, "SequenceGroup", "The ranks that train on the same rows; see zeroshard/sequence.h.")
      .def(py::init([](const std::string& group, c10::Device device, const Config* config, int first_rank) {
             return WithoutLock<SequenceGroup>(
                 new SequenceGroup(make_comm(group, device, options_of(config, first_rank))));
           }),
           py::arg("group"), py::arg("device"), py::arg("config"), py::arg("first_rank"), Release())
      .def_property_readonly("rank", &SequenceGroup::rank)
      .def_property_readonly("size", &SequenceGroup::size)
      .def_property_readonly("transport", &SequenceGroup::transport)
      .def("exchange", &SequenceGroup::exchange, py::arg("tensors"), Release())
      .def("gather", &SequenceGroup::gather, py::arg("piece"), Release())
      .def("mean", &SequenceGroup::mean, py::arg("loss"), py::arg("count"), Release())
      .def("tell", &SequenceGroup::tell, py::arg("numbers"), Release())
      .def("deal", &SequenceGroup::deal, py::arg("mine"), py::arg("like"), Release())
      .def("abort", &SequenceGroup::abort, py::arg("reason"), Release());
}

}  // namespace zeroshard
