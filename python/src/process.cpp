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

// Runs pending signal handlers of Python, and throws the exception that a handler raises. Does nothing if no
// interpreter runs. Also does nothing outside of the process's main thread, because Python runs handlers only in that
// thread. Other threads must not even ask for the interpreter's lock here, because an interpreter that ends does not
// give them the lock (see let_threads_stay()).
void run_signal_handlers() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

constexpr auto kLongestEnd = std::chrono::seconds(30);
std::atomic<bool> threads_stay_to_the_end = false;

// Replaces the handler of std::terminate(), so that a thread which asks for the interpreter's lock after the
// interpreter's end does not abort the process. Python before 3.14 ends such a thread by unwinding its stack. Frames
// that are noexcept do not allow this, so std::terminate() is called. The new handler makes the thread wait. If
// end_beside_threads() was called, the thread waits until the process ends. Otherwise the thread waits for kLongestEnd.
// If the process has not ended by then, it may be waiting for this thread, so the previous handler aborts the process.
// In the main thread, the new handler calls the previous one at once.
void let_threads_stay() {
  static const std::terminate_handler previous = std::get_terminate();
  [[maybe_unused]] static const std::terminate_handler replaced = std::set_terminate([] {
    while (::gettid() != ::getpid() && threads_stay_to_the_end) ::pause();
    if (::gettid() != ::getpid()) std::this_thread::sleep_for(kLongestEnd);
    previous();
  });
}

// Makes the process end with its exit code before it destroys static objects that exist at this call, because threads
// still run and can use such objects. Output in stdio buffers is written first. Also calls let_threads_stay().
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
