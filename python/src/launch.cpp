#include "zeroshard/launch.h"

#include "bindings.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard {

void bind_launch(py::module_& m) {
  py::class_<RankEnvironment>(m, "RankEnvironment")
      .def_readonly("rank", &RankEnvironment::rank)
      .def_readonly("world_size", &RankEnvironment::world_size)
      .def_readonly("local_rank", &RankEnvironment::local_rank)
      .def_readonly("local_world_size", &RankEnvironment::local_world_size);
  m.def("stack_dump_signal", &stack_dump_signal, "The signal by which `zeroshard run` asks a hung rank for its stack.");
  m.def(
      "rank_environment", [] { return rank_environment(); },
      "This process's rank, from the variables of torchrun, mpirun or srun; 0 of 1 without any.");
}

}  // namespace zeroshard
