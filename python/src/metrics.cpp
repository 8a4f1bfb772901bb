#include "zeroshard/metrics.h"

#include <pybind11/stl.h>

#include "bindings.h"

namespace zeroshard {

void bind_metrics(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<RunMetrics>(m, "RunMetrics", "The metrics of one run as files; see include/zeroshard/metrics.h.")
      .def(py::init([](std::string directory, bool csv, bool tensorboard, std::optional<int64_t> resume_step) {
             MetricsOptions options;
             options.directory = std::move(directory);
             options.jsonl = false;
             options.csv = options.svg = csv;
             options.tensorboard = tensorboard;
             options.resume_step = resume_step;
             return std::make_unique<RunMetrics>(std::move(options));
           }),
           py::arg("directory"), py::kw_only(), py::arg("csv"), py::arg("tensorboard"), py::arg("resume_step"),
           Release())
      .def("record", &RunMetrics::record, py::arg("step"), py::arg("values"), Release())
      .def("finish", &RunMetrics::finish, Release());
}

}  // namespace zeroshard
