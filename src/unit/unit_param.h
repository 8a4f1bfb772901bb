#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "layout/unit_layout.h"

namespace zeroshard {

// One parameter of a unit. All tensors that refer to the parameter are views of one storage. The unit attaches memory
// to this storage and detaches the memory again; see Note [Stable storage] in device/detachable_storage.h. While the
// storage has no memory, reading a view throws an error that names the parameter, even after the unit was destroyed.
//
// Note [Views that users keep]
// A hold is the time in which users keep a unit gathered. During a hold, users can make views of a parameter, and they
// can keep these views after the hold. Examples are param.detach() and param.data, and on the CPU also
// param.detach().cpu(), which makes no copy there. In plain PyTorch such a view keeps its values, because memory is
// freed only when no tensor uses it any more. In zeroshard it keeps its values, too, if no forward or backward needs
// the unit at the end of the hold.
//
// For the time of the hold, the parameter's tensors get a second storage over the same memory, and second version
// counters. When the hold ends, the tensors return to the parameter's own storage and counters. All views that the
// second storage still has were made by users. If no forward or backward needs the unit any more, these views take over
// the memory, and the unit gets other memory. So later writes to the views do not change the parameter. The views get
// the memory itself and not a copy, because other threads might be reading it through them. If a forward or backward
// still needs the unit, or if there is no other memory, the unit keeps its memory, and reading the views throws.
//
// A forward outside of a hold makes views of the parameter's own storage. Reading such a view throws while the unit is
// sharded, and works again after the unit's next gather, which attaches memory to this storage.
class UnitParam {
 public:
  // Turns `tensors` into views of the parameter's storage, which has no memory before put(). `tensors` are all tensors
  // that refer to the parameter (several if it is tied). If `spec` has a floating-point dtype, the tensors get it.
  // Otherwise they keep their own dtype.
  UnitParam(const ParamSpec& spec, std::vector<at::Tensor> tensors, at::Device device);
  UnitParam(UnitParam&&) noexcept = default;
  UnitParam& operator=(UnitParam&&) = delete;
  ~UnitParam();

  // Returns all tensors that refer to the parameter, in the order of the constructor.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Returns true if the storage of `tensor` is that of the parameter or, during a hold, the second storage.
  bool owns(const at::Tensor& tensor) const;

  // put() attaches memory that the caller owns and that has the parameter's values. take() detaches the memory. During
  // a hold, both functions change both storages.
  void put(void* memory);
  void take();

  // Begins a hold; see Note [Views that users keep].
  void begin_hold();
  // Returns whether a view other than the parameter's tensors has the second storage of the hold. Returns false without
  // a hold.
  bool has_kept_views() const;
  // Ends a hold. `memory` is a tensor that owns the attached memory. The kept views, if there are any, keep `memory`
  // alive. If `memory` is undefined, reading a kept view throws from now on. Does nothing without a hold.
  void end_hold(const at::Tensor& memory);

  // Returns whether a tensor is moved. A tensor is moved if a user has given it other memory, another shape or other
  // strides (param.data = ..., vector_to_parameters, share_memory_()), and nothing has undone that yet.
  bool is_moved() const;
  // Returns whether take_back() can take the values of moved tensors. It can if all moved tensors can be read, have the
  // parameter's shape, and, if there are several, have equal values. Also copies moved tensors that lie in memory of
  // the engine to memory of their own.
  bool prepare_take_back();
  // Makes all tensors views of the parameter's storage again. The unit's memory must be attached. If `values` is true,
  // first copies the values of a moved tensor into this memory. Before such a call, prepare_take_back() must have
  // returned true for every moved parameter that the caller takes back. If `values` is false, drops the values of moved
  // tensors.
  void take_back(bool values);
  // Makes all tensors views of the parameter's storage again, whether it has memory or not. Drops the values of moved
  // tensors. Unlike take_back(), does not undo share_memory_().
  void point_back();
  // Turns the tensors into ordinary ones that share the memory of `values`, which has the parameter's elements. Views
  // that users keep share this memory, too. Moved tensors keep their values, except after share_memory_(). After the
  // call, the parameter may only be destroyed.
  void give_back(const at::Tensor& values);

 private:
  // The parameter's own storage and version counters, to which the tensors return at the end of a hold.
  struct Own {
    c10::Storage storage;
    std::vector<c10::VariableVersion> versions;  // for each tensor
  };

  bool is_elsewhere(const at::Tensor& tensor) const;
  bool has_other_memory() const;
  void point_at_storage(const c10::Storage& storage);

  std::string name_;
  at::Tensor view_;  // a view of the current storage in the parameter's shape and dtype; undefined after give_back()
  std::vector<at::Tensor> tensors_;
  void* memory_ = nullptr;
  std::optional<Own> own_;  // set during a hold
};

}  // namespace zeroshard
