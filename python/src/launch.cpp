#include "zeroshard/launch.h"

#include "base/interface.h"
#include "bindings.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard {

void bind_launch(py::module_& m) {
  py::class_<RankEnvironment>(m, "RankEnvironment")
      .def_readonly("rank", &RankEnvironment::rank)
      .def_readonly("world_size", &RankEnvironment::world_size)
      .def_readonly("local_rank", &RankEnvironment::local_rank)
      .def_readonly("local_world_size", &RankEnvironment::local_world_size, "0: the launcher does not say.")
      .def_readonly("source", &RankEnvironment::source);
  m.def("stack_dump_signal", &stack_dump_signal, "The signal by which `zeroshard run` asks a hung rank for its stack.");
  m.def(
      "rank_environment", [] { return rank_environment(); },
      "The rank of this process, from the variables of torchrun, mpirun or srun. Rank 0 of 1 without them.");
  m.def("interface_towards", &interface_towards, py::arg("host"), py::call_guard<py::gil_scoped_release>(),
        "The name of the network interface that leads to `host`, or to other hosts if `host` is this one.");
}

}  // namespace zeroshard
