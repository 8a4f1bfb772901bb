#include <malloc.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "device/cpu_allocator.h"
#include "device/detachable_storage.h"
#include "device/missing_memory.h"
#include "engine/consensus.h"
#include "engine/engine_build.h"
#include "engine/impl.h"
#include "engine/memory_needs.h"

namespace zeroshard {
namespace {

// Copies rank 0's values of the buffers to every rank. Skips buffers that are sparse, quantized or empty. Does not
// write to a buffer that has rank 0's values already, because some buffers cannot be written.
void share_buffers(Comm& comm, const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  if (comm.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers) {
    if (buffer.layout() != at::kStrided || buffer.is_quantized() || buffer.numel() == 0) continue;
    const at::Tensor mine = buffer.contiguous().view({-1}), first = mine.clone(), bytes = first.view(at::kByte);
    comm.broadcast({bytes.data_ptr(), bytes.numel(), DType::kOther1}, /*root=*/0, name)->wait();
    if (!bytes.equal(mine.view(at::kByte))) set_buffer(buffer, first.view_as(buffer));
  }
}

// Memory that initialisation frees stays with glibc if it lies between blocks that are still used. Over all units, that
// may be as much memory as the whole model has. return_free_memory() returns such memory to the system, but scans the
// whole heap. So it is called only after this many freed bytes and after the last unit, and not after each of many
// small units.
constexpr int64_t kReturnBytes = 4 << 20;

void return_free_memory() {
#ifdef __GLIBC__
  // Only one thread at a time may make this call, because glibc's malloc initialises itself at its first call without a
  // lock. This call is the first one if the program uses another malloc (jemalloc, a sanitizer's).
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  malloc_trim(0);
#endif
}

ReduceOptions reduce_options(const EngineOptions& options, int world_size) {
  const Config& config = options.config;
  ReduceOptions reduce;
  reduce.device = options.device;
  reduce.pack_scale = float(1 / config.prescale);
  reduce.sum_scale = float(config.prescale / (config.average_gradients ? world_size : 1));
  reduce.native = config.reduction == Config::Reduction::kNative;
  return reduce;
}

// Throws StateError if a parameter belongs to another engine, or to one that was destroyed without returning it. Two
// engines with the same parameter would take each other's gradients.
void check_free(const UnitLayout& layout, const std::vector<std::vector<at::Tensor>>& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (std::none_of(params[i].begin(), params[i].end(), is_detachable)) continue;
    throw StateError(concat("parameter '", layout.params[i].name(),
                            "' belongs to another engine, or to one that is gone: let that one return its units first "
                            "(Engine::return_unit)"));
  }
}

}  // namespace

Engine::Impl::Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce,
                   Comm* checkpoint, const ReplicaComms& replication)
    : options(completed(std::move(engine_options), units)),
      ranks(gather, reduce, checkpoint, replication, options.device, options.config.shares_states()),
      plan(units, options, ranks),
      optimizer(options.optimizer, options.device, &plan.ledger) {
  const auto build = [&] {
    memory = std::make_unique<Memory>(units, options, plan, ranks, [this] {
      // The thread of a delayed update only checks whether other ranks have failed, because the thread cannot be
      // interrupted.
      if (update && update->is_on_thread()) return ranks.all.check();
      ranks.check_while_waiting("it waited for a checkpoint to be read");
    });
    Executor::Callbacks callbacks;
    callbacks.on_unit_backward_ended = [this](size_t unit) { pass->end_unit_backward(unit); };
    if (memory->parameters_in_files)
      callbacks.on_upcoming = [this](std::span<const size_t> next) { memory->read_parameters_ahead(next, *executor); };
    executor = make_executor(units, plan, ranks, *memory, std::move(callbacks));
    share_buffers(ranks.values(), options.buffers);
    options.buffers.clear();  // the engine does not keep them, because the model owns them
    reducer = make_reducer(options, plan, ranks, *memory);
    pass = std::make_unique<Pass>(options.config, ranks, *executor, *reducer);
    writes = std::make_unique<UserWrites>(ranks, *memory, *executor, optimizer);
    update = std::make_unique<Update>(options, plan, ranks, *memory, *executor, *reducer, *writes, optimizer);
    step = std::make_unique<Step>(options, ranks, *memory, *executor, *reducer, *pass, *writes, *update);
    saves = std::make_unique<Saves>(options, plan, ranks, *memory, *executor, *reducer, *pass);
  };
  tell_missing_memory(build, [this] { return memory_needs_text(plan.layouts, plan.bytes, plan.init_peak); });
  pass->install_hooks(units);
  trim_cpu_memory();
}

std::unique_ptr<Executor> make_executor(const std::vector<UnitDefinition>& definitions, const EnginePlan& plan,
                                        const Ranks& ranks, Memory& memory, Executor::Callbacks callbacks) {
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<int> parents;
  int64_t freed_bytes = 0;  // upper limit of the bytes that units have freed since the last return_free_memory()
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    if (!ranks.device.is_cpu()) memory.groups->add_unit();
    UnitSource source{definitions[u].tensors(), {}};
    check_free(plan.layouts[u], source.params);
    if (const ParameterReader& read = definitions[u].values) {
      source.values = [&, u](size_t index, int64_t begin, int64_t end, float* out) {
        read(plan.layouts[u].params[index].name(), begin, end, out);
      };
    }
    const bool is_coded = plan.placements[u].parameters == Placement::kSharded;
    const Unit::Comms comms{.gather = ranks.gather,
                            .all = ranks.values(),
                            .codes = is_coded ? memory.coded_refresh.get() : nullptr,
                            .parts = ranks.num_parts() > 1 ? ranks.replicas : nullptr};
    units.push_back(std::make_unique<Unit>(plan.layouts[u], memory.groups->of_unit(u), plan.placements[u].parameters,
                                           std::move(source), ranks.device, comms, *memory.gather_ring,
                                           memory.gathers));
    parents.push_back(definitions[u].parent);
    freed_bytes += plan.layouts[u].full_bytes();
    if (freed_bytes < kReturnBytes && u + 1 < plan.layouts.size()) continue;
    return_free_memory();
    freed_bytes = 0;
  }
  memory.gather_ring->add(slots_by_size(plan.gather_ring));
  const auto is_sharded = [](const auto& unit) { return unit->placement() == Placement::kSharded; };
  if (std::any_of(units.begin(), units.end(), is_sharded)) {
    callbacks.max_over_ranks = [&ranks](int64_t number) {
      return all_reduce(ranks.gather, {number}, ReduceOp::kMax, "unit of backward")[0];
    };
  }
  const auto depth = [&plan](const UnitLayout& layout) { return prefetch_depth(layout.full_bytes(), plan.options); };
  return std::make_unique<Executor>(std::move(units), parents, depth, std::move(callbacks));
}

std::unique_ptr<Reducer> make_reducer(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
                                      const Memory& memory) {
  Reducer::Options reduce;
  static_cast<ReduceOptions&>(reduce) = reduce_options(options, ranks.all.world_size());
  reduce.overlap = options.config.overlap_comm;
  reduce.ring = plan.reduce_ring;
  reduce.exit_buffers = plan.gradient_exit;
  reduce.pin = options.config.offload_optimizer.pin_memory;
  reduce.while_read = [&ranks] { ranks.check_while_waiting("it waited for the update of the step before"); };
  reduce.scratch = exchange_scratch(plan.layouts, plan.placements, plan.options);
  reduce.replica_buffers = replica_buffers(plan.layouts, plan.options);
  reduce.quantized = options.config.quantized_gradients;
  reduce.share_states = ranks.num_parts() > 1;
  if (ranks.replicas != nullptr) reduce.all = &ranks.all;
  reduce.replicas = ranks.replicas;
  reduce.files = memory.gradients_in_files.get();
  return std::make_unique<Reducer>(plan.layouts, plan.placements, reduce, ranks.reduce, plan.ledger);
}

}  // namespace zeroshard
