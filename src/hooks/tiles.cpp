#include "hooks/tiles.h"

#include <ATen/Context.h>
#include <ATen/Generator.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

using Tensors = TiledCall::Tensors;
using Join = TiledCall::Join;
using torch::autograd::Node;

// The autocast state that the current thread has when the object is made, for the CPU and for one more type of device.
class Autocast {
 public:
  explicit Autocast(at::DeviceType device) : states_{read(at::kCPU), read(device)} {}
  Autocast off() const {
    Autocast result = *this;
    for (State& state : result.states_) state.enabled = false;
    return result;
  }

 private:
  struct State {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  friend class WithAutocast;
  static State read(at::DeviceType device) {
    if (!at::autocast::is_autocast_available(device)) return {device, false, at::kFloat};
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  void set() const {
    for (const State& state : states_) {
      if (!at::autocast::is_autocast_available(state.device)) continue;
      at::autocast::set_autocast_enabled(state.device, state.enabled);
      at::autocast::set_autocast_dtype(state.device, state.dtype);
    }
  }

  std::array<State, 2> states_;
};

// While an object lives, the current thread has the autocast state `wanted`.
class WithAutocast {
 public:
  explicit WithAutocast(const Autocast& wanted) : before_(wanted.states_[1].device) {
    at::autocast::increment_nesting();
    wanted.set();
  }
  WithAutocast(const WithAutocast&) = delete;
  WithAutocast& operator=(const WithAutocast&) = delete;
  ~WithAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.set();
  }

 private:
  Autocast before_;
};

// The states of random generators, as they are when the object is made. The generators are that of the CPU and, if
// `device` is a CUDA device, that of `device`.
class RandomStates {
 public:
  explicit RandomStates(at::Device device) {
    generators_.push_back(at::globalContext().defaultGenerator(at::Device(at::kCPU)));
    if (device.is_cuda()) generators_.push_back(at::globalContext().defaultGenerator(device));
    for (at::Generator& generator : generators_) states_.push_back(state_of(generator));
  }
  bool are_current() const {
    return std::equal(
        generators_.begin(), generators_.end(), states_.begin(),
        [](const at::Generator& generator, const at::Tensor& state) { return at::equal(state_of(generator), state); });
  }

 private:
  friend class WithRandomStates;
  static at::Tensor state_of(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state().clone();
  }
  void set() const {
    for (size_t i = 0; i < generators_.size(); ++i) {
      at::Generator generator = generators_[i];
      const std::lock_guard lock(generator.mutex());
      generator.set_state(states_[i]);
    }
  }

  std::vector<at::Generator> generators_;
  Tensors states_;
};

// While an object lives, the generators continue from the states `wanted`. Afterwards they continue from their earlier
// states.
class WithRandomStates {
 public:
  WithRandomStates(const RandomStates& wanted, at::Device device) : before_(device) { wanted.set(); }
  WithRandomStates(const WithRandomStates&) = delete;
  WithRandomStates& operator=(const WithRandomStates&) = delete;
  ~WithRandomStates() { before_.set(); }

 private:
  RandomStates before_;
};

// While an object lives, graphs of this thread save tensors without the hooks of
// torch.autograd.graph.saved_tensors_hooks. The class is for a graph that is destroyed before the forward ends, so
// hooks that move saved tensors elsewhere would be of no use.
class WithoutSavedTensorHooks {
 public:
  WithoutSavedTensorHooks() : before_(at::SavedTensorDefaultHooks::get_tls_state()) {
    at::impl::SavedTensorDefaultHooksTLS none = before_;
    none.stack = {};
    at::SavedTensorDefaultHooks::set_tls_state(none);
  }
  WithoutSavedTensorHooks(const WithoutSavedTensorHooks&) = delete;
  WithoutSavedTensorHooks& operator=(const WithoutSavedTensorHooks&) = delete;
  ~WithoutSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state(before_); }

 private:
  at::impl::SavedTensorDefaultHooksTLS before_;
};

// While an object lives, the tensors have no hooks of their own (Tensor.register_hook), because such hooks expect the
// sum over all tiles and not the gradient of one tile.
class WithoutTensorHooks {
 public:
  explicit WithoutTensorHooks(const Tensors& tensors) : tensors_(tensors) {
    for (const at::Tensor& tensor : tensors_) hooks_.push_back(std::move(torch::autograd::impl::hooks(tensor)));
    for (const at::Tensor& tensor : tensors_) torch::autograd::impl::hooks(tensor).clear();
  }
  WithoutTensorHooks(const WithoutTensorHooks&) = delete;
  WithoutTensorHooks& operator=(const WithoutTensorHooks&) = delete;
  ~WithoutTensorHooks() {
    for (size_t i = 0; i < tensors_.size(); ++i) torch::autograd::impl::hooks(tensors_[i]) = std::move(hooks_[i]);
  }

 private:
  Tensors tensors_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

bool contains(const Tensors& tensors, const at::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& each) { return each.is_same(tensor); });
}

// Returns the leaves of the graph of `output`, without those in `known`.
Tensors other_leaves(const at::Tensor& output, const Tensors& known) {
  Tensors found;
  std::vector<const Node*> left = {output.grad_fn().get()};
  std::unordered_set<const Node*> seen;
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      if (leaf->variable.defined() && !contains(known, leaf->variable)) found.push_back(leaf->variable);
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return found;
}

struct Tile {
  int64_t begin, length;
};

std::vector<Tile> tiles_of(int64_t length, int64_t tiles) {
  std::vector<Tile> result;
  const int64_t step = std::max<int64_t>(1, (length + tiles - 1) / tiles);
  for (int64_t begin = 0; begin < length; begin += step) result.push_back({begin, std::min(step, length - begin)});
  return result;
}

// The gradients that the tiles so far have: first those of the inputs, then those of the parameters. For an input that
// is cut, the gradients of the tiles are joined. For other inputs and for parameters, they are summed.
class Gradients {
 public:
  // Makes room for at least `size` gradients. Must be called when there are more parameters than before.
  void grow(size_t size) { sums_.resize(std::max(sums_.size(), size)); }

  void add_piece(size_t index, const at::Tensor& input, int64_t dim, const Tile& tile, const at::Tensor& grad) {
    at::Tensor& sum = sums_[index];
    if (!sum.defined()) sum = at::empty_like(input);
    const at::Tensor piece = sum.narrow(dim, tile.begin, tile.length);
    grad.defined() ? piece.copy_(grad) : piece.zero_();
  }

  void add(size_t index, at::Tensor grad) {
    if (!grad.defined()) return;
    at::Tensor& sum = sums_[index];
    const bool is_narrow = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
    if (sum.defined()) {
      sum.add_(grad);
    } else if (is_narrow) {
      sum = grad.to(at::kFloat);
      narrow_.emplace(index, grad.scalar_type());
    } else {
      const bool is_own = grad.layout() == at::kStrided && grad.use_count() == 1 && grad.storage().use_count() == 1 &&
                          grad.is_non_overlapping_and_dense();
      sum = is_own ? std::move(grad) : grad.clone();
    }
  }

  void scale(const at::Tensor& factor) {
    for (at::Tensor& sum : sums_)
      if (sum.defined()) sum.mul_(factor);
  }

  // Returns at least `size` gradients, in the dtypes in which they were added, and leaves none here. A gradient that no
  // tile has is undefined.
  Tensors take(size_t size) {
    grow(size);
    for (const auto& [index, dtype] : narrow_) sums_[index] = sums_[index].to(dtype);
    return std::move(sums_);
  }

 private:
  Tensors sums_;
  std::map<size_t, at::ScalarType> narrow_;  // dtype of the 16-bit gradients, by the index of their fp32 sum
};

// The data that the backward pass needs in addition to the inputs.
struct Tiling : torch::CustomClassHolder {
  Tiling(TiledCall of, at::Device device) : call(std::move(of)), autocast(device.type()) {}

  Tensors inputs_of(const Tensors& inputs, const Tile& tile, bool with_grad) const {
    Tensors result;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor all = inputs[i].detach();
      // A tile is contiguous, because functions may call view() on their inputs.
      result.push_back(i < call.num_cut ? all.narrow(call.dim, tile.begin, tile.length).contiguous() : all);
      if (with_grad && inputs[i].requires_grad()) result.back().requires_grad_();
    }
    return result;
  }

  void add_gradients(Gradients& sums, const Tensors& inputs, const Tensors& of_tile, const Tile& tile,
                     const at::Tensor& output, const at::Tensor& grad) const {
    Tensors wanted;
    std::vector<size_t> places;
    for (size_t i = 0; i < inputs.size() + params.size(); ++i) {
      const at::Tensor& each = i < inputs.size() ? of_tile[i] : params[i - inputs.size()];
      if (!each.requires_grad()) continue;
      wanted.push_back(each);
      places.push_back(i);
    }
    Tensors found(wanted.size());
    if (output.requires_grad()) {
      const WithoutTensorHooks without_hooks(params);
      const WithAutocast without_autocast(autocast.off());
      found = torch::autograd::grad({output}, wanted, {grad}, /*retain_graph=*/false, /*create_graph=*/false,
                                    /*allow_unused=*/true);
    }
    sums.grow(inputs.size() + params.size());
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t place = places[i];
      if (place < call.num_cut) {
        sums.add_piece(place, inputs[place], call.dim, tile, found[i]);
      } else {
        sums.add(place, std::move(found[i]));
      }
    }
  }

  TiledCall call;
  std::vector<Tile> tiles;
  Tensors params;
  size_t num_all = 0;              // number of inputs and parameters of the node
  std::vector<uint32_t> versions;  // version counters of the parameters in the forward pass
  Autocast autocast;
  std::optional<RandomStates> random;  // set if the function has used random numbers
  // The gradients, if the forward pass computes them. They are set until the backward pass takes them.
  std::optional<Gradients> at_once;
  at::Tensor result;
};

void check_is_scalar(const at::Tensor& of_tile) {
  ZS_CHECK(of_tile.numel() == 1, "a tile's result has ", of_tile.numel(),
           " elements: a sum, mean or list of tiles is of scalars");
}

// Joins the results of the tiles in a new tensor.
class Result {
 public:
  Result(const TiledCall& call, int64_t length) : call_(call), length_(length) {}

  void add(const at::Tensor& of_tile, const Tile& tile) {
    if (call_.join != Join::kAlongDim) {
      check_is_scalar(of_tile);
      scalars_.push_back(of_tile.detach().reshape({}));
      return;
    }
    const int64_t dims = of_tile.dim(), dim = call_.dim < 0 ? call_.dim + dims : call_.dim;
    ZS_CHECK(dim >= 0 && dim < dims && of_tile.size(dim) == tile.length, "a tile of length ", tile.length,
             " has a result of shape ", of_tile.sizes(), ": dimension ", call_.dim,
             " must have the length of the tile");
    if (!joined_.defined()) {
      std::vector<int64_t> sizes = of_tile.sizes().vec();
      sizes[size_t(dim)] = length_;
      joined_ = at::empty(sizes, of_tile.options());
    }
    joined_.narrow(dim, tile.begin, tile.length).copy_(of_tile.detach());
  }

  at::Tensor joined() const {
    if (call_.join == Join::kAlongDim) return joined_;
    const at::Tensor all = at::stack(scalars_);
    if (call_.join == Join::kStack) return all;
    return call_.join == Join::kSum ? all.sum() : all.mean();
  }

 private:
  const TiledCall& call_;
  int64_t length_;
  at::Tensor joined_;
  Tensors scalars_;
};

at::Tensor grad_of_tile(const Tiling& tiling, const at::Tensor& grad, size_t index, const at::Tensor& output) {
  const TiledCall& call = tiling.call;
  if (call.join == Join::kAlongDim) return grad.narrow(call.dim, tiling.tiles[index].begin, tiling.tiles[index].length);
  const at::Tensor one = call.join == Join::kStack  ? grad.select(0, int64_t(index))
                         : call.join == Join::kMean ? grad / double(tiling.tiles.size())
                                                    : grad;
  return one.reshape(output.sizes());
}

void run_backward(const Tiling& tiling, const Tensors& inputs, const at::Tensor& grad, Gradients& sums) {
  for (size_t i = 0; i < tiling.params.size(); ++i)
    if (tiling.params[i]._version() != tiling.versions[i])
      throw StateError(concat("a parameter of shape ", tiling.params[i].sizes(),
                              " was changed in place between the forward and the backward pass of a tiled function, "
                              "which computes with it again: change it after the backward pass"));
  const WithAutocast with_autocast(tiling.autocast);
  std::optional<WithRandomStates> with_random;
  if (tiling.random) with_random.emplace(*tiling.random, inputs[0].device());
  for (size_t i = 0; i < tiling.tiles.size(); ++i) {
    const Tile& tile = tiling.tiles[i];
    const at::AutoGradMode with_graph(true);
    const Tensors of_tile = tiling.inputs_of(inputs, tile, /*with_grad=*/true);
    const at::Tensor output = tiling.call.function(of_tile);
    Tensors known = of_tile;
    known.insert(known.end(), tiling.params.begin(), tiling.params.end());
    if (const Tensors late = other_leaves(output, known); !late.empty())
      throw StateError(concat("tile ", i, " of a tiled function uses a parameter of shape ", late.front().sizes(),
                              " that its first tile has not used: name it in compute_params"));
    tiling.add_gradients(sums, inputs, of_tile, tile, output, grad_of_tile(tiling, grad, i, output));
  }
}

class TileFunction : public torch::autograd::Function<TileFunction> {
 public:
  // `all` has the inputs, followed by the parameters.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList all,
                            const c10::intrusive_ptr<Tiling>& tiling) {
    if (!tiling->at_once) ctx->save_for_backward(all.slice(0, all.size() - tiling->params.size()).vec());
    ctx->saved_data["tiling"] = c10::IValue::make_capsule(tiling);
    return std::exchange(tiling->result, at::Tensor());
  }

  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grads) {
    const auto tiling = c10::static_intrusive_pointer_cast<Tiling>(ctx->saved_data["tiling"].toCapsule());
    const Tensors inputs = tiling->call.at_once ? Tensors() : ctx->get_saved_variables();
    Gradients sums;
    const auto compute = [&] { compute_gradients(*tiling, inputs, grads[0], sums); };
    tiling->call.around_backward ? tiling->call.around_backward(compute) : compute();
    return with_rest(sums.take(tiling->num_all), 1);
  }

 private:
  static void compute_gradients(Tiling& tiling, const Tensors& inputs, const at::Tensor& grad, Gradients& sums) {
    if (at::GradMode::is_enabled())
      throw StateError(
          "a tiled function has no second derivative, and create_graph=True asks for one: compute it without tiles");
    if (!tiling.call.at_once) return run_backward(tiling, inputs, grad, sums);
    if (!tiling.at_once)
      throw StateError(
          "a second backward pass goes through a loss whose gradients were computed in its forward pass. The first "
          "backward pass has taken these gradients: compute the loss again");
    sums = *std::exchange(tiling.at_once, std::nullopt);
    sums.scale(grad);
  }

  // Appends `rest` undefined gradients, for the arguments of forward() that have none.
  static Tensors with_rest(Tensors grads, size_t rest) {
    grads.resize(grads.size() + rest);
    return grads;
  }
};

void check(const TiledCall& call, const Tensors& inputs) {
  ZS_CHECK(call.tiles >= 1, "the number of tiles is ", call.tiles, ", expected at least 1");
  ZS_CHECK(call.num_cut >= 1 && call.num_cut <= inputs.size(), "a tiled function needs an input to cut");
  const auto length_of = [&](const at::Tensor& input) {
    const int64_t dim = call.dim < 0 ? call.dim + input.dim() : call.dim;
    ZS_CHECK(dim >= 0 && dim < input.dim(), "an input of shape ", input.sizes(), " has no dimension ", call.dim,
             " to cut into tiles");
    return input.size(dim);
  };
  for (size_t i = 0; i < call.num_cut; ++i)
    ZS_CHECK(length_of(inputs[i]) == length_of(inputs[0]), "inputs of shapes ", inputs[0].sizes(), " and ",
             inputs[i].sizes(), " differ in dimension ", call.dim, ", which is cut into tiles");
  for (const at::Tensor& input : inputs)
    ZS_CHECK(!input._fw_grad(0).defined(), "a tiled function has no forward-mode derivative: compute it without tiles");
  const bool is_scalar = call.join == Join::kSum || call.join == Join::kMean;
  ZS_CHECK(!call.at_once || is_scalar, "gradients are computed at once for a sum or a mean of tiles alone");
}

at::Tensor call_whole(const TiledCall& call, const Tensors& inputs) {
  const at::Tensor result = call.function(inputs);
  if (call.join == Join::kAlongDim) return result;
  check_is_scalar(result);
  return call.join == Join::kStack ? result.reshape({1}) : result.reshape({});
}

bool is_fp16(const at::Tensor& input) {
  const bool casts = at::autocast::is_autocast_available(input.device().type()) &&
                     at::autocast::is_autocast_enabled(input.device().type());
  return input.scalar_type() == at::kHalf ||
         (casts && at::autocast::get_autocast_dtype(input.device().type()) == at::kHalf);
}

}  // namespace

at::Tensor compute_tiled(TiledCall call, const Tensors& inputs, const Tensors& params) {
  check(call, inputs);
  const bool is_training = at::GradMode::is_enabled();
  call.at_once = call.at_once && is_training && !is_fp16(inputs[0]);
  const int64_t length = inputs[0].size(call.dim);
  const auto tiling = c10::make_intrusive<Tiling>(std::move(call), inputs[0].device());
  const TiledCall& own = tiling->call;
  tiling->tiles = tiles_of(length, own.tiles);
  if (tiling->tiles.size() <= 1) return call_whole(own, inputs);
  if (is_training)
    for (const at::Tensor& param : params)
      if (param.requires_grad() && param.is_leaf() && !contains(inputs, param) && !contains(tiling->params, param))
        tiling->params.push_back(param);
  const RandomStates random(inputs[0].device());
  if (own.at_once) tiling->at_once.emplace();
  Result result(own, length);
  for (size_t i = 0; i < tiling->tiles.size(); ++i) {
    const Tile& tile = tiling->tiles[i];
    const bool with_graph = is_training && (i == 0 || own.at_once);
    const at::AutoGradMode mode(with_graph);
    const Tensors of_tile = tiling->inputs_of(inputs, tile, with_graph);
    std::optional<WithoutSavedTensorHooks> without_hooks;
    if (with_graph) without_hooks.emplace();
    const at::Tensor output = own.function(of_tile);
    result.add(output, tile);
    if (!with_graph) continue;
    Tensors known = of_tile;
    known.insert(known.end(), tiling->params.begin(), tiling->params.end());
    for (const at::Tensor& leaf : other_leaves(output, known)) tiling->params.push_back(leaf);
    if (!own.at_once) continue;
    const at::Tensor one = at::ones_like(output);
    tiling->add_gradients(*tiling->at_once, inputs, of_tile, tile, output,
                          own.join == Join::kMean ? one / double(tiling->tiles.size()) : one);
  }
  {
    const at::NoGradGuard no_graph;
    tiling->result = result.joined();
  }
  Tensors all = inputs;
  all.insert(all.end(), tiling->params.begin(), tiling->params.end());
  const bool has_grad = std::ranges::any_of(all, [](const at::Tensor& each) { return each.requires_grad(); });
  if (!is_training || !has_grad) return tiling->result;
  tiling->num_all = all.size();
  if (!random.are_current()) tiling->random = random;
  for (const at::Tensor& param : tiling->params) tiling->versions.push_back(uint32_t(param._version()));
  // If the forward has already computed the gradients, the backward does not call the function. The function is dropped
  // then, because it can keep the graph of the inputs alive.
  if (own.at_once) tiling->call.function = nullptr;
  return TileFunction::apply(at::TensorList(all), tiling);
}

}  // namespace zeroshard
