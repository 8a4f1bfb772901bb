#pragma once
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "bindings.h"
#include "zeroshard/world.h"

namespace zeroshard {

// Returns the group that torch.distributed registered under `name`; null for "". Groups are passed by name, because
// torch and this module may not share pybind types.
inline World::Group find_group(const std::string& name) {
  return name.empty() ? World::Group() : c10d::resolve_process_group(name);
}

// Deletes an object without the interpreter's lock, because threads that end with the object may need the lock.
struct DeleteWithoutLock {
  template <typename T>
  void operator()(T* object) const {
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check() != 0) released.emplace();
    delete object;
  }
};
template <typename T>
using WithoutLock = std::unique_ptr<T, DeleteWithoutLock>;

}  // namespace zeroshard
