#pragma once
#include <torch/csrc/utils/pybind.h>

// Declares one function per public header of the core. Each function adds the names of its header to the Python module,
// and has no logic of its own.
namespace zeroshard {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_config(py::module_& m);
void bind_launch(py::module_& m);
void bind_checkpoint_files(py::module_& m);
void bind_meeting(py::module_& m);
void bind_engine(py::module_& m);
void bind_metrics(py::module_& m);
void bind_world(py::module_& m);
void bind_process(py::module_& m);
void bind_signals(py::module_& m);
void bind_sequence(py::module_& m);
void bind_tiles(py::module_& m);

}  // namespace zeroshard
