#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "layout/unit_layout.h"

namespace zeroshard {

// One parameter of a unit. The tensors of a parameter are views of one storage. The unit attaches memory to this
// storage and detaches the memory again; see Note [Stable storage] in device/swap_storage.h. While the storage has no
// memory, reading a view throws an error that names the parameter, even after the unit was destroyed.
//
// Note [Views that users keep]
// Users can make views of a parameter while they hold its unit gathered, and keep them after the hold: param.detach(),
// param.data, and on the CPU also param.detach().cpu(). In other frameworks such a view keeps its values, because a
// tensor is freed only when nobody uses it any more. In zeroshard such a view keeps its values, too. For the time of
// the hold, the parameter's tensors get a second storage over the same memory, and second version counters. When the
// hold ends, they return to the parameter's own storage and counters. If the second storage still has views then, users
// have made them, and the memory is left to these views. The memory is not copied, because other threads might be
// reading it. The unit gets other memory, so later writes to the views do not change the parameter. A forward outside
// of a hold makes views of the parameter's own storage. While the unit is sharded, reading such a view throws, because
// only the unit's next gather gives memory to this storage again.
class UnitParam {
 public:
  // Turns `tensors` into views of the parameter's storage, which has no memory before put(). `tensors` are all tensors
  // that refer to the parameter (several if it is tied). If `spec` has a floating-point dtype, they get this dtype.
  UnitParam(const ParamSpec& spec, std::vector<at::Tensor> tensors, at::Device device);
  UnitParam(UnitParam&&) noexcept = default;
  UnitParam& operator=(UnitParam&&) = delete;
  ~UnitParam();

  // Returns all tensors of the parameter. The first is the one that users know.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Returns whether `tensor` is the parameter or a view of it.
  bool owns(const at::Tensor& tensor) const;

  // put() attaches the memory that has the values. take() detaches it.
  void put(void* memory);
  void take();

  // Begins a hold; see Note [Views that users keep].
  void begin_hold();
  bool has_kept_views() const;
  // Ends a hold. `memory` owns the attached memory, and is left to the kept views. If `memory` is undefined, reading a
  // kept view throws from now on. Does nothing without a hold.
  void end_hold(const at::Tensor& memory);

  // Returns whether a user has given other memory to a tensor (param.data = ..., vector_to_parameters), and take_back()
  // has not undone that yet.
  bool is_moved() const;
  // Returns whether the values of a moved parameter can be taken. This is so if each moved tensor has the parameter's
  // shape, and all moved tensors of a tied parameter have equal values. If it returns true, the moved tensors share no
  // memory with the engine.
  bool prepare_take_back();
  // Makes all tensors views of the parameter again, whose memory must be attached. If `values` is true, first copies
  // the values of moved tensors into this memory; otherwise drops them. prepare_take_back() must have been called for
  // all parameters before.
  void take_back(bool values);
  // Makes all tensors views of the parameter again, with or without memory. Drops the values of moved tensors.
  void point_back();
  // Turns the tensors into ordinary ones that have the elements of `values`. After that, the parameter may only be
  // destroyed.
  void give_back(const at::Tensor& values);

 private:
  // The parameter's own storage and version counters, which are saved during a hold.
  struct Own {
    c10::Storage storage;
    std::vector<c10::VariableVersion> versions;  // for each tensor
  };

  bool is_elsewhere(const at::Tensor& tensor) const;
  bool has_other_memory() const;
  void point_at_storage(const c10::Storage& storage);

  std::string name_;
  at::Tensor view_;  // a tensor with the parameter's values; undefined after give_back()
  std::vector<at::Tensor> tensors_;
  void* memory_ = nullptr;
  std::optional<Own> own_;  // set during a hold
};

}  // namespace zeroshard
