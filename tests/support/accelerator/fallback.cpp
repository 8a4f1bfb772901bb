#include "support/accelerator/fallback.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "support/accelerator/device.h"
#include "support/accelerator/memory.h"

namespace zeroshard::accelerator {
namespace {

using Values = std::vector<c10::IValue>;
using EachTensor = std::function<at::Tensor(const at::Tensor&)>;

// `value` with each tensor replaced, also those in lists.
c10::IValue with_tensors(const c10::IValue& value, const EachTensor& each) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(each(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(each(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      list.push_back(tensor && tensor->defined() ? std::optional(each(*tensor)) : tensor);
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& body) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    body(tensor);
    return tensor;
  });
}

bool is_on_accelerator(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// Outputs like the tensors of one argument, or of a part of its sizes: operators without a Meta kernel in C++.
using Shapes = std::function<std::vector<at::Tensor>(const Values& metas)>;

at::Tensor meta_of_sizes(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

std::vector<at::Tensor> layer_norm_shapes(const Values& metas) {
  const at::Tensor input = metas[0].toTensor();
  std::vector<int64_t> rows = input.sizes().vec();
  const size_t normalized = metas[1].toIntVector().size();
  std::fill(rows.end() - static_cast<int64_t>(normalized), rows.end(), 1);
  const at::Tensor output = meta_of_sizes(input.sizes(), input.scalar_type());
  return {output, meta_of_sizes(rows, input.scalar_type()), meta_of_sizes(rows, input.scalar_type())};
}

std::vector<at::Tensor> layer_norm_backward_shapes(const Values& metas) {
  const auto like = [&](size_t at, int64_t mask_at) {
    const bool wanted = metas[7].toBoolList().get(static_cast<size_t>(mask_at));
    if (!wanted || !metas[at].isTensor() || !metas[at].toTensor().defined()) return at::Tensor();
    return meta_of_sizes(metas[at].toTensor().sizes(), metas[at].toTensor().scalar_type());
  };
  return {like(1, 0), like(5, 1), like(6, 2)};
}

std::vector<at::Tensor> mse_loss_shapes(const Values& metas) {
  const at::Tensor input = metas[0].toTensor();
  return {metas[2].toInt() == 0 ? meta_of_sizes(input.sizes(), input.scalar_type())
                                : meta_of_sizes({}, input.scalar_type())};
}

std::vector<at::Tensor> mse_loss_backward_shapes(const Values& metas) {
  return {meta_of_sizes(metas[1].toTensor().sizes(), metas[1].toTensor().scalar_type())};
}

std::vector<at::Tensor> embedding_backward_shapes(const Values& metas) {
  const at::Tensor grad = metas[0].toTensor();
  return {meta_of_sizes({metas[2].toInt(), grad.size(-1)}, grad.scalar_type())};
}

std::vector<at::Tensor> where_shapes(const Values& metas) {
  const at::Tensor chosen = metas[1].toTensor(), otherwise = metas[2].toTensor();
  const auto sizes = at::infer_size(metas[0].toTensor().sizes(), at::infer_size(chosen.sizes(), otherwise.sizes()));
  return {meta_of_sizes(sizes, at::result_type(chosen, otherwise))};
}

std::vector<at::Tensor> logical_not_shapes(const Values& metas) {
  return {meta_of_sizes(metas[0].toTensor().sizes(), at::kBool)};
}

std::vector<at::Tensor> logical_and_shapes(const Values& metas) {
  return {meta_of_sizes(at::infer_size(metas[0].toTensor().sizes(), metas[1].toTensor().sizes()), at::kBool)};
}

std::vector<at::Tensor> bucketize_shapes(const Values& metas) {
  return {meta_of_sizes(metas[0].toTensor().sizes(), metas[2].toBool() ? at::kInt : at::kLong)};
}

std::vector<at::Tensor> index_select_shapes(const Values& metas) {
  const at::Tensor input = metas[0].toTensor();
  std::vector<int64_t> sizes = input.sizes().vec();
  const int64_t dim = metas[1].toInt();
  sizes.at(static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)) = metas[2].toTensor().numel();
  return {meta_of_sizes(sizes, input.scalar_type())};
}

// Meta's own refuses a source without elements.
std::vector<at::Tensor> index_add_shapes(const Values& metas) {
  return {meta_of_sizes(metas[0].toTensor().sizes(), metas[0].toTensor().scalar_type())};
}

std::vector<at::Tensor> floor_divide_shapes(const Values& metas) {
  const at::Tensor a = metas[0].toTensor(), b = metas[1].toTensor();
  return {meta_of_sizes(at::infer_size(a.sizes(), b.sizes()), at::result_type(a, b))};
}

const std::map<std::string, Shapes>& known_shapes() {
  static const auto& shapes = *new std::map<std::string, Shapes>{
      {"aten::native_layer_norm", layer_norm_shapes},
      {"aten::native_layer_norm_backward", layer_norm_backward_shapes},
      {"aten::mse_loss", mse_loss_shapes},
      {"aten::mse_loss_backward", mse_loss_backward_shapes},
      {"aten::where", where_shapes},
      {"aten::isfinite", logical_not_shapes},
      {"aten::logical_not", logical_not_shapes},
      {"aten::logical_and", logical_and_shapes},
      {"aten::bucketize", bucketize_shapes},
      {"aten::index_select", index_select_shapes},
      {"aten::index_add", index_add_shapes},
      {"aten::floor_divide", floor_divide_shapes},
      {"aten::embedding_dense_backward", embedding_backward_shapes},
  };
  return shapes;
}

struct Waited {
  std::mutex mutex;
  std::set<std::string> names;
  static Waited& get() {
    static auto& waited = *new Waited();
    return waited;
  }
};

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Values arguments)
      : op_(op), arguments_(std::move(arguments)), name_(op.schema().operator_name().name) {
    for (const c10::IValue& argument : arguments_)
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_on_accelerator(tensor)) {
          TORCH_CHECK(device_ < 0 || device_ == tensor.device().index(), name_,
                      ": expected all tensors on the same device, got ", device(device_), " and ", tensor.device());
          device_ = tensor.device().index();
        } else {
          TORCH_CHECK(tensor.dim() == 0 || name_.rfind("aten::index", 0) == 0 || name_.rfind("aten::_index", 0) == 0,
                      name_, ": expected all tensors on the same device, got one of ", tensor.sizes(), " on ",
                      tensor.device());
        }
      });
    for (const c10::IValue& argument : arguments_)
      if (device_ < 0 && argument.isDevice())
        device_ = argument.toDevice().has_index() ? argument.toDevice().index() : -1;
    if (device_ < 0) device_ = current_device();
  }

  Values run() {
    const c10::OptionalDeviceGuard guard(device(device_));
    stream_ = current_stream(device_);
    if (const auto outputs = output_metas()) return launch(*outputs);
    return wait();
  }

 private:
  // Undefined ones for outputs that are arguments. None: the shapes are not known before the kernel has run.
  std::optional<std::vector<c10::IValue>> output_metas() {
    std::map<c10::TensorImpl*, at::Tensor> made;
    Values metas;
    for (const c10::IValue& argument : arguments_) {
      metas.push_back(argument.isDevice() ? c10::IValue(c10::Device(at::kMeta))
                                          : with_tensors(argument, [&](const at::Tensor& tensor) {
                                              if (!is_on_accelerator(tensor) && tensor.dim() == 0) return tensor;
                                              at::Tensor& meta = made[tensor.unsafeGetTensorImpl()];
                                              if (!meta.defined())
                                                meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                                                         tensor.options().device(at::kMeta));
                                              return meta;
                                            }));
    }
    if (const auto known = known_shapes().find(name_); known != known_shapes().end()) {
      std::vector<c10::IValue> outputs;
      for (const at::Tensor& tensor : known->second(metas)) outputs.emplace_back(tensor);
      return outputs;
    }
    if (!returns_tensors()) return std::nullopt;
    try {
      op_.callBoxed(metas);
      return metas;
    } catch (const c10::NotImplementedError&) {
      if (!all_outputs_are_arguments()) return std::nullopt;
      return std::vector<c10::IValue>(op_.schema().returns().size());
    }
  }

  bool returns_tensors() const {
    return std::all_of(op_.schema().returns().begin(), op_.schema().returns().end(), [](const c10::Argument& each) {
      return each.type()->isSubtypeOf(*c10::TensorType::get()) || each.type()->isSubtypeOf(*c10::ListType::ofTensors());
    });
  }
  bool all_outputs_are_arguments() const {
    for (size_t i = 0; i < op_.schema().returns().size(); ++i)
      if (argument_of_output(i) < 0) return false;
    return true;
  }

  // In place and out=: the argument that an output is; else -1.
  int argument_of_output(size_t index) const {
    const c10::AliasInfo* const output = op_.schema().returns()[index].alias_info();
    if (output == nullptr || !output->isWrite()) return -1;
    for (size_t i = 0; i < op_.schema().arguments().size(); ++i) {
      const c10::AliasInfo* const argument = op_.schema().arguments()[i].alias_info();
      if (argument != nullptr && argument->beforeSets() == output->beforeSets()) return static_cast<int>(i);
    }
    return -1;
  }
  bool is_written(size_t index) const {
    const c10::AliasInfo* const argument = op_.schema().arguments()[index].alias_info();
    return argument != nullptr && argument->isWrite();
  }

  // Arguments over real memory. Scalars of the host are read now.
  Values real_arguments(std::vector<Access>& accesses) const {
    Values real;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      real.push_back(arguments_[i].isDevice() ? c10::IValue(c10::Device(at::kCPU))
                                              : with_tensors(arguments_[i], [&](const at::Tensor& tensor) {
                                                  if (!is_on_accelerator(tensor)) return tensor.clone();
                                                  accesses.push_back(access_of(tensor, is_written(i)));
                                                  return real_tensor(tensor);
                                                }));
    }
    return real;
  }

  // out= of another size is resized, as everywhere in torch.
  void resize_outputs(const std::vector<c10::IValue>& metas) const {
    for (size_t i = 0; i < metas.size(); ++i) {
      const int argument = argument_of_output(i);
      if (argument < 0 || !metas[i].isTensor()) continue;
      const at::Tensor& meta = metas[i].toTensor();
      const at::Tensor& tensor = arguments_[static_cast<size_t>(argument)].toTensor();
      if (meta.defined() && meta.sizes() != tensor.sizes()) tensor.resize_(meta.sizes());
    }
  }

  Values launch(const std::vector<c10::IValue>& metas) {
    resize_outputs(metas);
    std::vector<Access> accesses;
    Values real = real_arguments(accesses), outputs, real_outputs;
    for (size_t i = 0; i < metas.size(); ++i) {
      if (const int argument = argument_of_output(i); argument >= 0) {
        outputs.push_back(arguments_[static_cast<size_t>(argument)]);
        real_outputs.emplace_back();
        continue;
      }
      outputs.push_back(with_tensors(metas[i], [&](const at::Tensor& meta) {
        return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device(device_)));
      }));
      real_outputs.push_back(with_tensors(outputs.back(), [&](const at::Tensor& tensor) {
        accesses.push_back(access_of(tensor, /*writes=*/true));
        return real_tensor(tensor);
      }));
    }
    Streams::get().enqueue(stream_, WorkKind::kLaunch, text(), without_known_reads(accesses),
                           [op = op_, real = std::move(real), real_outputs = std::move(real_outputs)] {
                             const at::AutoDispatchBelowAutograd below;
                             Values results = real;
                             op.callBoxed(results);
                             for (size_t i = 0; i < real_outputs.size(); ++i) store(results[i], real_outputs[i]);
                           });
    return outputs;
  }

  // "aten::mul.out"
  std::string text() const { return c10::toString(op_.schema().operator_name()); }

  // What is written at the same place says more than that it is read.
  static std::vector<Access> without_known_reads(const std::vector<Access>& accesses) {
    std::vector<Access> left;
    for (const Access& access : accesses) {
      const auto covers = [&](const Access& other) {
        return other.writes && other.begin <= access.begin && access.end <= other.end;
      };
      if (access.writes || std::none_of(accesses.begin(), accesses.end(), covers)) left.push_back(access);
    }
    return left;
  }

  static void store(const c10::IValue& from, const c10::IValue& to) {
    std::vector<at::Tensor> sources;
    for_each_tensor(from, [&](const at::Tensor& tensor) { sources.push_back(tensor); });
    size_t next = 0;
    for_each_tensor(to, [&](const at::Tensor& tensor) {
      TORCH_CHECK(next < sources.size() && sources[next].sizes() == tensor.sizes(), "a kernel's shape is not Meta's");
      tensor.copy_(sources[next++]);
    });
  }

  Values wait() {
    {
      const std::scoped_lock lock(Waited::get().mutex);
      Waited::get().names.insert(name_);
    }
    std::vector<Access> accesses;
    const auto results = std::make_shared<Values>(real_arguments(accesses));
    Streams::get().enqueue(stream_, WorkKind::kLaunch, text(), without_known_reads(accesses), [op = op_, results] {
      const at::AutoDispatchBelowAutograd below;
      op.callBoxed(*results);
    });
    Streams::get().wait_on_host(stream_);
    Values outputs;
    for (size_t i = 0; i < results->size(); ++i) {
      const int argument = argument_of_output(i);
      outputs.push_back(argument >= 0 ? arguments_[static_cast<size_t>(argument)]
                                      : with_tensors((*results)[i], [&](const at::Tensor& tensor) {
                                          return tensor.to(device(device_));
                                        }));
    }
    return outputs;
  }

  const c10::OperatorHandle& op_;
  Values arguments_;
  std::string name_;
  int device_ = -1;
  StreamKey stream_;
};

}  // namespace

at::Tensor real_tensor(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(real_address(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

Access access_of(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size(), writes};
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowAutograd below;
  Call call(op, torch::jit::pop(*stack, op.schema().arguments().size()));
  for (c10::IValue& output : call.run()) stack->push_back(std::move(output));
}

std::vector<std::string> operators_that_waited() {
  const std::scoped_lock lock(Waited::get().mutex);
  return {Waited::get().names.begin(), Waited::get().names.end()};
}

}  // namespace zeroshard::accelerator
