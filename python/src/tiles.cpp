#include "hooks/tiles.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "zeroshard/activations.h"

namespace zeroshard {

void bind_tiles(py::module_& m) {
  using Join = TiledCall::Join;
  py::enum_<Join>(m, "Join")
      .value("ALONG_DIM", Join::kAlongDim)
      .value("STACK", Join::kStack)
      .value("SUM", Join::kSum)
      .value("MEAN", Join::kMean);
  using Call = std::function<void()>;
  m.def(
      "compute_tiled",
      [](std::function<at::Tensor(const TiledCall::Tensors&)> function, const TiledCall::Tensors& inputs,
         const TiledCall::Tensors& params, int64_t tiles, int64_t dim, size_t num_cut, Join join, bool at_once,
         const std::function<void(const Call&)>& around_backward) {
        const auto around = [around_backward](const Call& loop) {
          around_backward([&loop] {
            const py::gil_scoped_release release;  // because backward passes in the loop need the lock
            loop();
          });
        };
        return compute_tiled({std::move(function), around, tiles, dim, num_cut, join, at_once}, inputs, params);
      },
      py::arg("function"), py::arg("inputs"), py::arg("params"), py::kw_only(), py::arg("tiles"), py::arg("dim"),
      py::arg("num_cut"), py::arg("join"), py::arg("at_once"), py::arg("around_backward"),
      py::call_guard<py::gil_scoped_release>());
  m.def("loss_tiles", &loss_tiles, py::arg("tokens"), py::arg("vocabulary"));
  m.def("mlp_tiles", &mlp_tiles, py::arg("length"), py::arg("hidden"));
}

}  // namespace zeroshard
