#include "zeroshard/error.h"

#include "bindings.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

// Sets the Python error `name` with the message of `error`. The message can contain bytes that are not UTF-8, for
// example in a path, or where it was cut in the middle of a character. For such bytes pybind11's own translation would
// raise a UnicodeDecodeError. This function replaces such bytes by escapes.
void raise(const char* name, const std::exception& error) {
  const std::string what = error.what();
  const auto text =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(what.data(), Py_ssize_t(what.size()), "backslashreplace"));
  PyErr_SetObject(py::module_::import("zeroshard._C").attr(name).ptr(), text.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const ConfigError& error) {
    raise("ConfigError", error);
  } catch (const ValueError& error) {
    raise("ValueError", error);
  } catch (const CommError& error) {
    raise("CommError", error);
  } catch (const IoError& error) {
    raise("IoError", error);
  } catch (const StateError& error) {
    raise("StateError", error);
  } catch (const InternalError& error) {
    raise("InternalError", error);
  } catch (const Error& error) {
    raise("Error", error);
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  m.attr("__version__") = kVersion;
  const auto error = py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  // zeroshard's ValueError also derives from Python's, so that `except ValueError` catches it.
  const py::tuple bases = py::make_tuple(error, py::handle(PyExc_ValueError));
  const auto value_error = py::register_exception<ValueError>(m, "ValueError", bases);
  py::register_exception<ConfigError>(m, "ConfigError", value_error);
  py::register_exception<CommError>(m, "CommError", error);
  // zeroshard's IoError also derives from Python's OSError.
  const py::tuple io_bases = py::make_tuple(error, py::handle(PyExc_OSError));
  py::register_exception<IoError>(m, "IoError", io_bases);
  py::register_exception<StateError>(m, "StateError", error);
  py::register_exception<InternalError>(m, "InternalError", error);
  py::register_exception_translator(&translate);  // registered last, because pybind11 calls the last translator first
}

}  // namespace zeroshard
