#include "comm_c10d/c10d_comm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "comm/arguments.h"
#include "comm/direct_comm.h"
#include "comm/rank_order.h"
#include "comm_c10d/c10d_core.h"
#include "comm_c10d/c10d_names.h"
#include "comm_c10d/c10d_work.h"
#include "device/dtype.h"

namespace zeroshard {
namespace {

constexpr int64_t kGatherLimitBytes = 64 << 10;  // the backend itself runs all_reduces of more bytes
constexpr int64_t kCopyBytes = 4 << 20;          // the bytes that a broadcast on the host copies at a time

at::Tensor tensor_of(const void* data, int64_t numel, at::ScalarType dtype, at::Device device) {
  return at::for_blob(const_cast<void*>(data), {numel})
      .options(at::TensorOptions().dtype(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

// Returns the sum or the maximum of the rows of a matrix. The rows are combined in pairs, as Note [The tree of a sum]
// in kernels_impl.h describes.
at::Tensor combine_rows(const at::Tensor& rows, ReduceOp op) {
  const int64_t count = rows.size(0);
  if (count == 1) return rows[0];
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
  const at::Tensor a = combine_rows(rows.narrow(0, 0, left), op);
  const at::Tensor b = combine_rows(rows.narrow(0, left, count - left), op);
  return op == ReduceOp::kSum ? a.add(b) : a.maximum(b);
}

// On the CPU, every rank sends this header before its elements in an all_reduce of at most kGatherLimitBytes, so that
// ranks that called different collectives notice the difference.
struct GatherHeader {
  uint64_t seq, hash;
};

// Returns a function that tells why the communicator `host` is broken. The function returns "" if `host` is not broken.
// It always returns "" if `host` runs over a process group, because such a communicator reports its failures to the
// SharedFailure of the device's communicator. Any thread may call the function while `host` lives.
std::function<std::string()> question_to(const Comm& host) {
  const auto* const direct = dynamic_cast<const DirectComm*>(&host);
  if (direct == nullptr) return [] { return std::string(); };
  return [direct] { return direct->why_broken(); };
}

}  // namespace

C10dComm::C10dComm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, PeerWatch watch,
                   const CommOptions& options, std::shared_ptr<Divergence> divergence, std::unique_ptr<Comm> host)
    : core_(std::make_shared<C10dCore>(group, device, std::move(watch), options, std::move(divergence))),
      transport_(group ? c10d::ProcessGroup::backendTypeToString(group->getBackendType()) : "single"),
      host_(std::move(host)) {
  ZS_ASSERT(device.is_cpu() || host_, "a communicator of a device needs one for the host");
  if (device.is_cpu()) return;
  // After a failure, the listener aborts the collectives on the device, which would otherwise wait forever, and tells
  // the ranks that wait in host_.
  core_->failure().listen(this, [this](const std::string& text) {
    core_->end();
    host_->abort(text);
  });
  if (core_->world_size() > 1) core_->watch(question_to(*host_));
}

C10dComm::~C10dComm() {
  if (core_->is_forked()) {
    core_->abandon_watch();
    new std::shared_ptr<C10dCore>(core_);  // the core is never destroyed
    return;
  }
  core_->unwatch();
  core_->failure().leave(this);
}

int C10dComm::rank() const {
  return core_->rank();
}
int C10dComm::world_size() const {
  return core_->world_size();
}
bool C10dComm::exchange_needs_scratch() const {
  return core_->world_size() > 1;
}
bool C10dComm::still_writes() const {
  return world_size() > 1 && core_->still_writes();
}
std::optional<int64_t> C10dComm::history() const {
  if (core_->device().is_cpu() || world_size() == 1) return std::nullopt;
  return static_cast<int64_t>(core_->history().hash >> 1);
}

void C10dComm::report_difference(std::string_view tag) {
  core_->report_difference(Op(OpKind::kBarrier, 0, DType::kOther1, tag));
}

void C10dComm::await_device(std::string_view tag) {
  core_->throw_if_failed();
  if (core_->device().is_cpu() || world_size() == 1) return;
  core_->await_stream(Op(OpKind::kBarrier, 0, DType::kOther1, tag), [this] { host_->check(); });
}

void C10dComm::check() {
  core_->throw_if_failed();
  if (host_) host_->check();  // if host_ is shared memory, it learns of a failed rank immediately
}

void C10dComm::abort(std::string_view reason) noexcept {
  core_->abort(reason);
  if (host_) host_->abort(reason);
}

// Returns the span's memory as a tensor of bytes, because backends support few element types for some operations.
at::Tensor C10dComm::bytes_of(const ConstSpan& span) const {
  return tensor_of(span.data, span.bytes(), at::kByte, core_->device());
}

at::Tensor C10dComm::values_of(const ConstSpan& span) const {
  return tensor_of(span.data, span.numel, to_scalar_type(span.dtype), core_->device());
}

std::unique_ptr<Work> C10dComm::local_copy(Span to, const ConstSpan& from) {
  if (to.data != from.data && from.numel > 0) bytes_of(to).copy_(bytes_of(from), /*non_blocking=*/true);
  return std::make_unique<StreamWork>(core_->device());
}

std::unique_ptr<Work> C10dComm::all_gather(Span full, ConstSpan shard, std::string_view tag) {
  check_all_gather(full, shard, world_size(), tag);
  core_->throw_if_failed();
  if (world_size() == 1 || full.numel == 0) return local_copy(full, shard);
  Op op(OpKind::kAllGather, shard.numel, shard.dtype, tag);
  auto work = core_->issue(op, [&] { return start_all_gather(full, shard, op); });
  return std::make_unique<C10dWork>(core_, op, std::move(work));
}

c10::intrusive_ptr<c10d::Work> C10dComm::start_all_gather(const Span& full, const ConstSpan& shard, const Op&) {
  return c10d_names::all_gather(core_->group(), bytes_of(full), bytes_of(shard));
}

std::unique_ptr<Work> C10dComm::reduce_scatter(Span out, ConstSpan full, std::string_view tag) {
  check_reduce_scatter(out, full, world_size(), tag);
  core_->throw_if_failed();
  if (world_size() == 1 || full.numel == 0) return local_copy(out, full);
  Op op(OpKind::kReduceScatter, full.numel, full.dtype, tag);
  if (transport_ == "gloo") return reduce_scatter_by_all_reduce(out, full, op);
  auto work =
      core_->issue(op, [&] { return c10d_names::reduce_scatter(core_->group(), values_of(out), values_of(full)); });
  return std::make_unique<C10dWork>(core_, op, std::move(work));
}

// Replaces Gloo's own reduce_scatter, because the Work that Gloo returns for it never reports that it is complete, so a
// dead peer could not be distinguished from a slow one. Ranks send no more bytes than with Gloo's reduce_scatter,
// because that is an all_reduce, too.
std::unique_ptr<Work> C10dComm::reduce_scatter_by_all_reduce(Span out, const ConstSpan& full, Op op) {
  const at::Tensor sum = values_of(full).clone();
  auto work = core_->issue(op, [&] {
    std::vector<at::Tensor> tensors{sum};
    return core_->group().allreduce(tensors);
  });
  return std::make_unique<C10dWork>(core_, op, std::move(work), [sum, result = values_of(out), rank = rank()] {
    result.copy_(sum.narrow(0, rank * result.numel(), result.numel()));
  });
}

std::unique_ptr<Work> C10dComm::all_to_all(Span out, ConstSpan in, std::string_view tag) {
  check_all_to_all(out, in, world_size(), tag);
  core_->throw_if_failed();
  if (world_size() == 1 || in.numel == 0) return local_copy(out, in);
  Op op(OpKind::kAllToAll, in.numel, in.dtype, tag);
  auto work = core_->issue(op, [&] { return c10d_names::all_to_all(core_->group(), bytes_of(out), bytes_of(in)); });
  return std::make_unique<C10dWork>(core_, op, std::move(work));
}

std::unique_ptr<Work> C10dComm::all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                             std::string_view tag) {
  check_all_to_all_v(out, in, counts, rank(), world_size(), tag);
  core_->throw_if_failed();
  Op op = all_to_all_v_op(counts, in.dtype, tag);
  if (world_size() == 1 || op.numel == 0) return local_copy(out, in);
  std::vector<int64_t> sent, received;  // bytes for each peer
  for (int peer = 0; peer < world_size(); ++peer) {
    sent.push_back(counts[size_t(rank() * world_size() + peer)] * element_size(in.dtype));
    received.push_back(counts[size_t(peer * world_size() + rank())] * element_size(in.dtype));
  }
  auto work = core_->issue(
      op, [&] { return c10d_names::all_to_all(core_->group(), bytes_of(out), bytes_of(in), received, sent); });
  return std::make_unique<C10dWork>(core_, op, std::move(work));
}

std::unique_ptr<Work> C10dComm::all_reduce(Span data, ReduceOp reduce_op, std::string_view tag) {
  check_all_reduce(data, tag);
  core_->throw_if_failed();
  if (world_size() == 1) return std::make_unique<DoneWork>();
  core_->complete_all();
  if (data.bytes() <= kGatherLimitBytes) return all_reduce_by_gather(data, reduce_op, tag);
  Op op(OpKind::kAllReduce, data.numel, data.dtype, tag, static_cast<int32_t>(reduce_op));
  c10d::AllreduceOptions options;
  if (reduce_op == ReduceOp::kMax) options.reduceOp = c10d::ReduceOp::MAX;
  const at::Tensor result = values_of(data), sum = core_->device().is_cpu() ? result.clone() : result;
  auto work = core_->issue(op, [&] {
    std::vector<at::Tensor> tensors{sum};
    return core_->group().allreduce(tensors, options);
  });
  return std::make_unique<C10dWork>(core_, op, std::move(work), [result, sum] {
    if (!sum.is_same(result)) result.copy_(sum);
  });
}

// Gathers the elements of all ranks, and then reduces them on each rank in the order of reduce_in_rank_order(), because
// no backend guarantees this order.
std::unique_ptr<Work> C10dComm::all_reduce_by_gather(Span data, ReduceOp reduce_op, std::string_view tag) {
  Op op(OpKind::kAllReduce, data.numel, data.dtype, tag, static_cast<int32_t>(reduce_op));
  const bool host = core_->device().is_cpu();  // a device sends no header, because the host would wait to read it
  const int64_t header = host ? int64_t{sizeof(GatherHeader)} : 0, bytes = data.bytes() + header;
  const auto options = at::TensorOptions().dtype(at::kByte).device(core_->device());
  if (bytes == 0) {
    barrier(tag);
    return std::make_unique<DoneWork>();
  }
  const at::Tensor mine = at::empty({bytes}, options), all = at::empty({world_size(), bytes}, options);
  auto work = core_->issue(op, [&] {
    if (host) {
      const GatherHeader own{core_->history().seq, core_->history().hash};
      std::memcpy(mine.data_ptr(), &own, sizeof own);
    }
    if (data.numel > 0) mine.narrow(0, header, data.bytes()).copy_(bytes_of(data));
    return c10d_names::all_gather(core_->group(), all.view({-1}), mine);
  });
  if (!host) {
    return std::make_unique<C10dWork>(core_, op, std::move(work), [result = values_of(data), reduce_op, all, mine] {
      const at::Tensor rows = all.view(result.scalar_type());
      result.copy_(combine_rows(rows, reduce_op));
    });
  }
  return std::make_unique<C10dWork>(core_, op, std::move(work), [core = core_, op, data, reduce_op, all, mine, bytes] {
    const auto* rows = static_cast<const std::byte*>(all.const_data_ptr());
    std::vector<const void*> pieces;
    for (int rank = 0; rank < core->world_size(); ++rank) {
      const std::byte* row = rows + rank * bytes;
      if (std::memcmp(row, rows, sizeof(GatherHeader)) != 0)
        core->fail(op, concat("rank ", core->number_of(rank), " has called other collectives than rank ",
                              core->number_of(0), " up to this one (kinds, sizes, dtypes or tags differ)"));
      pieces.push_back(row + sizeof(GatherHeader));
    }
    reduce_in_rank_order(pieces, data.dtype, reduce_op, data.data, data.numel);
  });
}

std::unique_ptr<Work> C10dComm::broadcast(Span data, int root, std::string_view tag) {
  check_broadcast(data, root, world_size(), tag);
  core_->throw_if_failed();
  if (world_size() == 1) return std::make_unique<DoneWork>();
  core_->complete_all();
  if (data.numel == 0) return std::make_unique<DoneWork>();
  Op op(OpKind::kBroadcast, data.numel, data.dtype, tag, root);
  if (core_->device().is_cpu()) return broadcast_by_copy(data, op);
  auto work = core_->issue(op, [&] { return start_broadcast(bytes_of(data), op); });
  return std::make_unique<C10dWork>(core_, op, std::move(work));
}

c10::intrusive_ptr<c10d::Work> C10dComm::start_broadcast(const at::Tensor& bytes, const Op& op) {
  c10d::BroadcastOptions options;
  options.rootRank = op.argument;
  std::vector<at::Tensor> tensors{bytes};
  return core_->group().broadcast(tensors, options);
}

// Broadcasts host memory, and returns when the broadcast is done. The data goes in parts through a buffer that this
// function allocates, because after an error the backend might still write when the caller's memory is gone.
std::unique_ptr<Work> C10dComm::broadcast_by_copy(Span data, Op op) {
  const at::Tensor all = bytes_of(data), copy = at::empty({std::min(kCopyBytes, data.bytes())}, all.options());
  for (int64_t begin = 0; begin < all.numel(); begin += kCopyBytes) {
    const at::Tensor part = all.slice(0, begin, std::min(begin + kCopyBytes, all.numel()));
    const at::Tensor sent = copy.narrow(0, 0, part.numel());
    if (rank() == op.argument) sent.copy_(part);
    const auto work = core_->issue(op, [&] { return start_broadcast(sent, op); });
    core_->complete(*work, op);
    if (rank() != op.argument) part.copy_(sent);
  }
  return std::make_unique<DoneWork>();
}

void C10dComm::barrier(std::string_view tag) {
  core_->throw_if_failed();
  if (world_size() == 1) return;
  core_->complete_all();
  Op op(OpKind::kBarrier, 0, DType::kOther1, tag);
  c10d::BarrierOptions options;
  if (!core_->device().is_cpu()) options.device = core_->device();
  const auto work = core_->issue(op, [&] { return core_->group().barrier(options); });
  core_->complete_on_host(*work, op);
}

std::unique_ptr<Exchange> C10dComm::exchange(ConstSpan full, Span scratch, std::string_view tag) {
  check_exchange(full, scratch, exchange_needs_scratch(), world_size(), tag);
  core_->throw_if_failed();
  if (world_size() == 1)
    return std::make_unique<C10dExchange>(std::make_unique<DoneWork>(), std::vector{full.data}, full.dtype);
  std::vector<const void*> pieces;
  for (int rank = 0; rank < world_size(); ++rank)
    pieces.push_back(static_cast<const std::byte*>(scratch.data) + rank * (scratch.bytes() / world_size()));
  std::unique_ptr<Work> work = std::make_unique<DoneWork>();
  if (full.numel > 0) {
    Op op(OpKind::kExchange, full.numel, full.dtype, tag);
    auto started =
        core_->issue(op, [&] { return c10d_names::all_to_all(core_->group(), bytes_of(scratch), bytes_of(full)); });
    work = std::make_unique<C10dWork>(core_, op, std::move(started));
  }
  return std::make_unique<C10dExchange>(std::move(work), std::move(pieces), full.dtype);
}

std::unique_ptr<Allocation> C10dComm::allocate(int64_t bytes, std::string_view tag) {
  check_allocate(bytes, tag);
  core_->throw_if_failed();
  const auto options = at::TensorOptions().dtype(at::kByte).device(core_->device());
  return std::make_unique<C10dAllocation>(core_, at::zeros({std::max<int64_t>(bytes, 1)}, options), bytes);
}

}  // namespace zeroshard
