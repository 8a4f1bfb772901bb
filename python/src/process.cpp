#include "base/interrupt.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "bindings.h"

namespace zeroshard {
namespace {

// Python runs handlers in its main thread alone. Others must not even ask: a process that ends gives them its lock no
// more.
void run_signal_handlers() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Python ends a thread that wants its lock after the end of the interpreter, by unwinding its stack, which the
// destructors on it do not let through. It stays where it is instead, and with it all that it may use: the process ends
// with its own code before anything static is destroyed.
void end_beside_threads() {
  static const std::terminate_handler previous = std::get_terminate();
  std::set_terminate([] {
    while (::gettid() != ::getpid()) ::pause();
    previous();
  });
  ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
}

}  // namespace

void bind_process(py::module_& m) {
  m.def(
      "keep_forever", [](const py::object& object) { object.inc_ref(); },
      "The object is never destroyed, not even when the interpreter ends.");
  m.def("end_beside_threads", &end_beside_threads,
        "The interpreter is about to end, while threads wait inside of other libraries.");
  set_interrupt_check(&run_signal_handlers);
}

}  // namespace zeroshard
