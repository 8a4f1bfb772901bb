// The module that tests of the Python front load: tests/python/simulated.py.
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/kernels.h"
#include "support/accelerator/memory.h"
#include "support/accelerator/streams.h"

namespace py = pybind11;
using zeroshard::accelerator::Schedule;
using zeroshard::accelerator::Streams;

namespace {

void start(int schedule, uint64_t seed) {
  zeroshard::accelerator::start();
  zeroshard::accelerator::use_own_kernels(true);
  Streams::get().set_schedule(static_cast<Schedule>(schedule), seed);
  Streams::get().races().forget();
}

// Races, and operators that made the host wait.
std::vector<std::string> findings() {
  std::vector<std::string> found = Streams::get().races().found();
  for (const std::string& name : zeroshard::accelerator::operators_that_waited())
    found.push_back("the host waited for " + name);
  return found;
}

}  // namespace

PYBIND11_MODULE(zs_simulated_device, m) {
  m.def("start", start, py::arg("schedule"), py::arg("seed"), py::call_guard<py::gil_scoped_release>());
  m.def("findings", findings);
  m.def("device_count", [] { return zeroshard::accelerator::kDevices; });
  m.def("current_device", zeroshard::accelerator::current_device);
  m.def("set_device", zeroshard::accelerator::set_current_device);
  m.def("allocated_bytes", zeroshard::accelerator::allocated_bytes);
  m.def("peak_bytes", zeroshard::accelerator::peak_bytes);
  m.def("reset_peak", zeroshard::accelerator::reset_peak);
  // A collective frees tensors on its own thread, so none of this may hold Python's lock.
  m.def("make_backend", zeroshard::accelerator::make_backend, py::arg("store"), py::arg("rank"), py::arg("world_size"),
        py::arg("device"), py::call_guard<py::gil_scoped_release>());
}
