#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
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
// the CPU also param.detach().cpu(). Other frameworks free a tensor when nobody uses it any more, so such a view keeps
// its values. It does here, too: for the time of the hold the parameter has another storage, over the same memory, and
// another version counter. Views of that storage are the users' alone; those of a forward outside of the hold are views
// of the parameter's own storage. When the hold ends, a storage that has views is left to them with its memory, which
// is not copied, because other threads may be reading it. The parameter gets its own storage and counter back, and the
// unit other memory. So what users write to the views later is no write to the parameter. Views that a forward leaves
// behind get their memory back with the unit's next gather, and throw until then.
class UnitParam {
 public:
  // The tensors become views of the parameter: they have no memory until put(). `tensors`: all that reach the
  // parameter, several where it is tied. Their dtype becomes the one of `spec` if they are floating-point.
  UnitParam(const ParamSpec& spec, std::vector<at::Tensor> tensors, at::Device device);
  UnitParam(UnitParam&&) noexcept = default;
  UnitParam& operator=(UnitParam&&) = delete;
  ~UnitParam();

  // The first is the one that users know.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Whether `tensor` is the parameter or a view of it.
  bool owns(const at::Tensor& tensor) const;

  // The values lie at `memory`, until take().
  void put(void* memory);
  void take();

  // Note [Views that users keep].
  void begin_hold();
  bool has_kept_views() const;
  // `memory` owns what was put, and is left to the kept views; if it is undefined, these throw from here on. Does
  // nothing without a hold.
  void end_hold(const at::Tensor& memory);

  // Whether a tensor was given other memory (param.data = ..., vector_to_parameters) that is not taken back yet.
  bool is_moved() const;
  // Whether the values of a moved parameter can be taken: it must have the same shape, and its tied tensors the same
  // values. Afterwards they share no memory with the engine.
  bool prepare_take_back();
  // Makes all tensors views of the parameter again. Only with memory. With `values`, copies those of moved tensors into
  // it; call prepare_take_back() of all parameters before.
  void take_back(bool values);
  // Makes all tensors views of the parameter again, with memory or without: the values of moved tensors are dropped.
  void point_back();
  // Makes the tensors ordinary ones, with the elements of `values`: the parameter is only to be destroyed.
  void give_back(const at::Tensor& values);

 private:
  // The parameter's own, for the time of a hold.
  struct Own {
    c10::Storage storage;
    std::vector<c10::VariableVersion> versions;  // by tensor
  };

  bool is_elsewhere(const at::Tensor& tensor) const;
  bool has_other_memory() const;
  void point_at_storage(const c10::Storage& storage);

  std::string name_;
  at::Tensor view_;  // what the tensors are; undefined after give_back()
  std::vector<at::Tensor> tensors_;
  void* memory_ = nullptr;
  std::optional<Own> own_;  // while the unit is held
};

}  // namespace zeroshard
