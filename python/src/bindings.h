#pragma once
#include <torch/csrc/utils/pybind.h>

// Declares the functions that add names to the Python module `zeroshard._C`. Most of them bind what a public header of
// the core declares. bind_process() and bind_signals() bind functions that this folder defines.
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
