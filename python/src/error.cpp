#include "zeroshard/error.h"

#include "bindings.h"
#include "zeroshard/version.h"

namespace zeroshard {

void bind_errors(py::module_& m) {
  m.attr("__version__") = kVersion;
  const auto error = py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  // A ValueError of ours is also Python's, so that `except ValueError` works.
  const py::tuple bases = py::make_tuple(error, py::handle(PyExc_ValueError));
  const auto value_error = py::register_exception<ValueError>(m, "ValueError", bases);
  py::register_exception<ConfigError>(m, "ConfigError", value_error);
  py::register_exception<CommError>(m, "CommError", error);
  // And an IoError Python's OSError.
  const py::tuple io_bases = py::make_tuple(error, py::handle(PyExc_OSError));
  py::register_exception<IoError>(m, "IoError", io_bases);
  py::register_exception<StateError>(m, "StateError", error);
  py::register_exception<InternalError>(m, "InternalError", error);
}

}  // namespace zeroshard
