#include "zeroshard/checkpoint_files.h"

#include <pybind11/stl.h>

#include <set>

#include "bindings.h"
#include "zeroshard/error.h"

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
           py::arg("aliases") = std::vector<std::string>(), py::arg("trainable") = false, py::arg("updates") = 0)
      .def_readonly("name", &StoredTensor::name)
      .def_readonly("kind", &StoredTensor::kind)
      .def_readonly("dtype", &StoredTensor::dtype)
      .def_readonly("shape", &StoredTensor::shape)
      .def_readonly("aliases", &StoredTensor::aliases)
      .def_readonly("trainable", &StoredTensor::trainable)
      .def_readonly("bytes", &StoredTensor::bytes);
  py::class_<StoredCheckpoint>(m, "StoredCheckpoint", "An open checkpoint, whose tensors are read one by one.")
      .def(py::init<const std::string&>(), py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("path", [](const StoredCheckpoint& stored) { return stored.details().path; })
      .def_property_readonly("step", [](const StoredCheckpoint& stored) { return stored.details().summary.step; })
      .def_property_readonly("tensors", [](const StoredCheckpoint& stored) { return stored.details().tensors; })
      .def(
          "read",
          [](StoredCheckpoint& stored, const std::string& name, const std::string& kind, const std::string& dtype,
             const at::Tensor& out) {
            if (!out.is_cpu() || !out.is_contiguous())
              throw py::value_error("'" + name + "': out must be contiguous and on the CPU");
            const py::gil_scoped_release release;
            for (const StoredTensor& tensor : stored.details().tensors)
              if (tensor.name == name && tensor.kind == kind && out.sizes() != at::IntArrayRef(tensor.shape))
                throw ValueError("'" + name + "': out has another shape than the tensor in the checkpoint");
            stored.read(name, kind, dtype, out.data_ptr());
          },
          py::arg("name"), py::arg("kind"), py::kw_only(), py::arg("dtype"), py::arg("out"),
          "Fills the CPU tensor `out`, whose dtype is `dtype` as safetensors spells it.");
  m.def(
      "export_weights",
      [](const std::string& path, const std::string& directory, const std::string& dtype, int64_t max_file_bytes,
         const std::set<std::string>& leave_out) {
        ExportOptions options;
        options.dtype = dtype;
        options.max_file_bytes = max_file_bytes;
        options.rename = [&](const std::string& name) { return leave_out.contains(name) ? "" : name; };
        const py::gil_scoped_release release;
        return export_weights(path, directory, options);
      },
      py::arg("path"), py::arg("directory"), py::kw_only(), py::arg("dtype"), py::arg("max_file_bytes"),
      py::arg("leave_out") = std::set<std::string>(), "Writes the weights as Hugging Face keeps them.");
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
