#include "base/interrupt.h"

#include <unistd.h>

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

}  // namespace

void bind_process(py::module_& m) {
  m.def(
      "keep_forever", [](const py::object& object) { object.inc_ref(); },
      "The object is never destroyed, not even when the interpreter ends.");
  set_interrupt_check(&run_signal_handlers);
}

}  // namespace zeroshard
