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

// Python runs handlers in its main thread alone. Others must not even ask: a process that ends gives them its lock no
// more.
void run_signal_handlers() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

constexpr auto kLongestEnd = std::chrono::seconds(30);
std::atomic<bool> threads_stay_to_the_end = false;

// Python ends a thread that wants its lock after the end of the interpreter, by unwinding its stack, which the
// destructors on it do not let through. It stays where it is instead. If the end waits for it, the process is aborted
// after all.
void let_threads_stay() {
  static const std::terminate_handler previous = std::get_terminate();
  [[maybe_unused]] static const std::terminate_handler replaced = std::set_terminate([] {
    while (::gettid() != ::getpid() && threads_stay_to_the_end) ::pause();
    if (::gettid() != ::getpid()) std::this_thread::sleep_for(kLongestEnd);
    previous();
  });
}

// The threads, and all that they may use, are there to the end: the process ends with its own code before anything
// static is destroyed.
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
  open_standard_streams();  // before an import, an engine or a thread of this package opens its first file
  m.def(
      "keep_forever", [](const py::object& object) { object.inc_ref(); },
      "The object is never destroyed, not even when the interpreter ends.");
  m.def("let_threads_stay", &let_threads_stay,
        "The interpreter is about to end: a thread that wants its lock afterwards does not abort the process.");
  m.def("end_beside_threads", &end_beside_threads,
        "The interpreter is about to end, while threads wait inside of other libraries.");
  set_interrupt_check(&run_signal_handlers);
}

}  // namespace zeroshard
