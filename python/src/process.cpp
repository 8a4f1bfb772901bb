#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "base/standard_streams.h"
#include "bindings.h"

namespace zeroshard {
namespace {

// Runs pending signal handlers of Python. Python runs them only in its main thread. Other threads must not even take
// the interpreter's lock here, because a process that ends does not give it to them any more.
void run_signal_handlers() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

constexpr auto kLongestEnd = std::chrono::seconds(30);
std::atomic<bool> threads_stay_to_the_end = false;

// Keeps the process alive if a thread wants the interpreter's lock after the interpreter's end. Python ends such a
// thread by unwinding its stack, and destructors on the stack do not allow this, so std::terminate() is called. The
// handler that this function installs makes the thread wait instead. If the end of the process waits for that thread,
// the handler aborts the process after kLongestEnd.
void let_threads_stay() {
  static const std::terminate_handler previous = std::get_terminate();
  [[maybe_unused]] static const std::terminate_handler replaced = std::set_terminate([] {
    while (::gettid() != ::getpid() && threads_stay_to_the_end) ::pause();
    if (::gettid() != ::getpid()) std::this_thread::sleep_for(kLongestEnd);
    previous();
  });
}

// Makes the process end with its exit code before any static object is destroyed, because threads still run and can use
// such objects.
void end_beside_threads() {
  threads_stay_to_the_end = true;
  let_threads_stay();
  ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
}

}  // namespace

void bind_process(py::module_& m) {
  open_standard_streams();  // called before an import, an engine or a thread of this package can open a file
  m.def(
      "keep_forever", [](const py::object& object) { object.inc_ref(); },
      "Keeps the object for ever: it is not destroyed even when the interpreter ends.");
  m.def("let_threads_stay", &let_threads_stay,
        "Call it before the interpreter ends. A thread that asks for the interpreter's lock afterwards does not abort "
        "the process.");
  m.def("end_beside_threads", &end_beside_threads,
        "Makes the process end before any static object is destroyed, because threads still run.");
  set_interrupt_check(&run_signal_handlers);
}

}  // namespace zeroshard
