#pragma once
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "bindings.h"
#include "zeroshard/world.h"

namespace zeroshard {

// Returns the group that torch.distributed registered under `name`, or null for "". Throws c10::Error if there is no
// such group. Python passes a group's name instead of the group, because the pybind11 of this module knows torch's type
// for groups only if this module and torch were built with the same compiler ABI.
inline World::Group find_group(const std::string& name) {
  return name.empty() ? World::Group() : c10d::resolve_process_group(name);
}

// Deletes an object without holding the interpreter's lock. The destructor waits for threads of the object, and these
// can need the lock before they end.
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
