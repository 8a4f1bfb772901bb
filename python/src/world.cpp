#include "zeroshard/world.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "bindings.h"
#include "comm/comm.h"
#include "device/detachable_storage.h"
#include "process_groups.h"
#include "zeroshard/config.h"
#include "zeroshard/error.h"
#include "zeroshard/meeting.h"

namespace zeroshard {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;  // limit of one broadcast, because shared memory holds a copy of its bytes

void broadcast(World& world, const at::Tensor& tensor, int root, const std::string& tag) {
  if (!tensor.is_contiguous()) throw ValueError("broadcast of '" + tag + "': the tensor is not contiguous");
  auto* bytes = static_cast<std::byte*>(tensor.data_ptr());
  const int64_t total = static_cast<int64_t>(tensor.nbytes());
  for (int64_t begin = 0; begin < total; begin += kChunkBytes) {
    const Span chunk{bytes + begin, std::min(kChunkBytes, total - begin), DType::kOther1};
    world.gather().broadcast(chunk, root, tag)->wait();
  }
}

// Gives `tensor` the shape `shape` and a storage without memory. Keeps the dtype and the device. Access to its
// elements throws an error with the text `message`.
void make_hollow(const at::Tensor& tensor, const std::vector<int64_t>& shape, const std::string& message) {
  at::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(tensor.element_size());
  impl->set_storage_keep_dtype(make_detachable_storage(bytes, tensor.device(), message));
  impl->set_sizes_contiguous(shape);
}

}  // namespace

void bind_world(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  m.def("is_stand_in", &is_detachable, py::arg("grad"));
  m.def("make_hollow", &make_hollow, py::arg("tensor"), py::arg("shape"), py::arg("message"));
  py::class_<World, WithoutLock<World>>(m, "World", "The ranks of a run, for tensors that no engine has.")
      .def(py::init([](const Config& config, c10::Device device, const std::string& gather_group,
                       const std::string& reduce_group, const std::string& checkpoint_group, Meeting* meeting) {
             return WithoutLock<World>(new World(config, device, find_group(gather_group), find_group(reduce_group),
                                                 find_group(checkpoint_group), meeting));
           }),
           py::arg("config"), py::arg("device"), py::kw_only(), py::arg("gather_group"), py::arg("reduce_group"),
           py::arg("checkpoint_group"), py::arg("meeting") = nullptr, Release())
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::world_size)
      .def_property_readonly("transports", &World::transports)
      .def("broadcast", &broadcast, py::arg("tensor"), py::arg("root"), py::arg("tag"), Release())
      .def("abort", &World::abort, py::arg("reason"), Release());
}

}  // namespace zeroshard
