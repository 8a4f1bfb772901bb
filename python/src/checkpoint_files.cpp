#include "zeroshard/checkpoint_files.h"

#include <pybind11/stl.h>

#include "bindings.h"

namespace zeroshard {

void bind_checkpoint_files(py::module_& m) {
  py::class_<StoredTensor>(m, "StoredTensor",
                           "What a checkpoint says about one tensor; dtype as safetensors spells it.")
      .def(py::init([](std::string name, std::string kind, std::string dtype, std::vector<int64_t> shape,
                       std::vector<std::string> aliases, bool trainable, int64_t updates) {
             return StoredTensor{std::move(name),  std::move(kind), std::move(dtype), std::move(aliases),
                                 std::move(shape), trainable,       updates,          0};
           }),
           py::kw_only(), py::arg("name"), py::arg("kind"), py::arg("dtype"), py::arg("shape"),
           py::arg("aliases") = std::vector<std::string>(), py::arg("trainable") = false, py::arg("updates") = 0);
  m.def(
      "write_checkpoint",
      [](const std::string& root, const std::string& tag, int64_t step, const std::string& state,
         const std::string& rank_state, const std::map<std::string, std::string>& versions,
         const std::vector<std::pair<StoredTensor, at::Tensor>>& tensors) {
        NewCheckpoint checkpoint{root, tag, step, state, rank_state, versions, {}};
        for (const auto& [description, tensor] : tensors) {
          if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.sizes() != at::IntArrayRef(description.shape))
            throw py::value_error("'" + description.name + "' is not a contiguous CPU tensor of the shape it claims");
          checkpoint.tensors.push_back({description, tensor.data_ptr()});
        }
        const py::gil_scoped_release release;
        write_checkpoint(checkpoint);
      },
      py::kw_only(), py::arg("root"), py::arg("tag"), py::arg("step"), py::arg("state"), py::arg("rank_state"),
      py::arg("versions"), py::arg("tensors"), "Commits a checkpoint without an engine; see checkpoint_files.h.");
}

}  // namespace zeroshard
