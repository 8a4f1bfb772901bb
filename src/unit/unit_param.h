#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layout/unit_layout.h"

namespace zeroshard {

// One parameter of a unit, whose tensors are views of one storage. The unit puts memory behind the storage and takes it
// away: see Note [Stable storage] in device/swap_storage.h. Without memory, reading a view throws an error that names
// the parameter; so it does after the unit is gone.
//
// Note [Views that users keep]
// While users hold a unit gathered they may make views of its parameters and keep them: param.detach(), param.data, on
// the CPU also param.cpu(). Other frameworks free a tensor when nobody uses it any more, so such a view keeps its
// values. It does here, too: when the last hold ends and a storage has more views than when the first one began, the
// storage and its memory are left to these views (leave()), and the parameter gets another storage. The memory is not
// copied, because other threads may be reading it. Views that are made outside of a hold, such as those that autograd
// saves in a forward, get their memory back with the unit's next gather, and throw until then.
class UnitParam {
 public:
  // The tensors become views of the parameter: they have no memory until put(). `tensors`: all that reach the
  // parameter, several where it is tied. Their dtype becomes `dtype`, unless they are not floating-point.
  UnitParam(const ParamSpec& spec, std::vector<at::Tensor> tensors, at::Device device);
  UnitParam(UnitParam&&) noexcept = default;
  UnitParam& operator=(UnitParam&&) = delete;
  ~UnitParam();

  // The first is the one that users know.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Whether `tensor` is the parameter or a view of it.
  bool owns(const at::Tensor& tensor) const {
    return tensor.has_storage() && view_.storage().is_alias_of(tensor.storage());
  }

  // The values lie at `memory`, until take().
  void put(void* memory);
  void take();

  // Note [Views that users keep]: when the first hold begins, and when the last one ends.
  void note_views() { noted_views_ = num_views(); }
  bool has_new_views() const { return num_views() > noted_views_; }
  // Leaves the storage to its views. `owner` has the memory that was put. The parameter has no memory then.
  void leave(const at::Tensor& owner);

  // Whether a tensor was given other memory (param.data = ..., vector_to_parameters) that is not taken back yet.
  bool is_moved() const;
  // Whether the values of a moved parameter can be taken: it must have the same shape, and its tied tensors the same
  // values. Afterwards they share no memory with the engine.
  bool prepare_take_back();
  // Makes all tensors views of the parameter again. Only with memory. With `values`, copies those of moved tensors into
  // it; call prepare_take_back() of all parameters before.
  void take_back(bool values);
  // The same without memory: what moved tensors have is dropped.
  void point_back();
  // Makes the tensors ordinary ones, with the elements of `values`: the parameter is only to be destroyed.
  void give_back(const at::Tensor& values);

 private:
  bool is_elsewhere(const at::Tensor& tensor) const;
  bool has_other_memory() const;
  int64_t num_views() const;

  std::string name_;
  at::Tensor view_;  // what the tensors are; undefined after give_back()
  std::vector<at::Tensor> tensors_;
  void* memory_ = nullptr;
  int64_t noted_views_ = 0;
};

}  // namespace zeroshard
