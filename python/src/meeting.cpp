#include "zeroshard/meeting.h"

#include <pybind11/functional.h>

#include <utility>

#include "bindings.h"

namespace zeroshard {

void bind_meeting(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Meeting>(m, "Meeting", "The ranks of a run, who come together over a store.")
      .def(py::init([](const std::function<void(const std::string&, const std::string&)>& write,
                       const std::function<int64_t(const std::string&)>& count,
                       const std::function<bool(const std::string&)>& has,
                       const std::function<std::string(const std::string&)>& read, int rank, int world_size,
                       int64_t timeout_ms, std::string purpose) {
             return std::make_unique<Meeting>(NoteBoard{write, count, has, read}, rank, world_size, timeout_ms,
                                              std::move(purpose));
           }),
           py::kw_only(), py::arg("write"), py::arg("count"), py::arg("has"), py::arg("read"), py::arg("rank"),
           py::arg("world_size"), py::arg("timeout_ms"), py::arg("purpose"))
      .def_property_readonly("number", &Meeting::number)
      .def_property_readonly("retried", &Meeting::retried)
      .def_property_readonly("out_of_step", &Meeting::out_of_step)
      .def("all_here", &Meeting::all_here)
      .def("check", &Meeting::check, py::arg("what"))
      .def("explain", &Meeting::explain, py::arg("error"), Release())
      .def("end", &Meeting::end)
      .def("leave", &Meeting::leave, py::arg("reason"), Release());
}

}  // namespace zeroshard
