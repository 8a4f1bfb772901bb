#include "zeroshard/sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "comm/comm.h"
#include "comm/local_comm.h"
#include "device/dtype.h"
#include "device/kept_memory.h"

namespace zeroshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kHeads = "heads for sequence", kRows = "rows of the sequence group";

Span span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.numel(), to_dtype(tensor.scalar_type())};
}

// Waits until the output can be used, and until all ranks have read this rank's input, because the caller frees the
// input. `memory` is the output and the input. If the collective fails and the transport may still write, `memory` is
// never freed.
void finish(Comm& comm, const std::unique_ptr<Work>& work, std::initializer_list<at::Tensor> memory) {
  try {
    work->wait();
    work->drain();
  } catch (...) {
    if (comm.still_writes())
      for (const at::Tensor& tensor : memory) keep_for_ever(tensor);
    throw;
  }
}

// Cuts dimension `split` into one piece for each of S ranks: [.., S * n, ..] -> [S, .., n, ..].
at::Tensor pieces_of(const at::Tensor& tensor, int64_t split, int64_t ranks) {
  return tensor.unflatten(split, {ranks, tensor.size(split) / ranks}).movedim(split, 0);
}

// Does SequenceGroup::exchange() for tensors of one dtype by one all-to-all: sends each rank its piece of dimension
// `split`, and joins the received pieces along dimension `join`.
std::vector<at::Tensor> exchange_alike(Comm& comm, const std::vector<at::Tensor>& tensors, int64_t split,
                                       int64_t join) {
  const int64_t ranks = comm.world_size();
  int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel() / ranks;
  const at::Tensor in = at::empty({ranks, numel}, tensors.front().options()), out = at::empty_like(in);
  const auto part_of = [](const at::Tensor& buffer, int64_t offset, const at::Tensor& pieces) {
    return buffer.narrow(1, offset, pieces.numel() / pieces.size(0)).view(pieces.sizes());
  };
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor pieces = pieces_of(tensor, split, ranks);
    part_of(in, offset, pieces).copy_(pieces);
    offset += pieces.numel() / ranks;
  }
  finish(comm, comm.all_to_all(span_of(out), span_of(in), kHeads), {in, out});
  std::vector<at::Tensor> joined;
  offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor came = part_of(out, offset, pieces_of(tensor, split, ranks));
    joined.push_back(came.movedim(0, join).flatten(join, join + 1));
    offset += came.numel() / ranks;
  }
  return joined;
}

// Does the same as exchange_alike() for tensors of any dtypes, by one all-to-all for each dtype. With autocast, queries
// and keys may have another dtype than values.
std::vector<at::Tensor> exchange_all(Comm& comm, const std::vector<at::Tensor>& tensors, int64_t split, int64_t join) {
  std::vector<at::Tensor> result(tensors.size());
  for (size_t first = 0; first < tensors.size(); ++first) {
    if (result[first].defined()) continue;
    std::vector<size_t> indices;
    std::vector<at::Tensor> alike;
    for (size_t i = first; i < tensors.size(); ++i) {
      if (tensors[i].scalar_type() != tensors[first].scalar_type()) continue;
      indices.push_back(i);
      alike.push_back(tensors[i]);
    }
    const std::vector<at::Tensor> joined = exchange_alike(comm, alike, split, join);
    for (size_t i = 0; i < indices.size(); ++i) result[indices[i]] = joined[i];
  }
  return result;
}

// Returns the gradient of each head. A head was sent as `copies` copies, which are neighbours in dimension 1. The
// head's gradient is the sum of the copies' gradients, added in the order of the copies. Sums of 16-bit gradients are
// formed in fp32.
at::Tensor sum_of_copies(const at::Tensor& grads, int64_t copies) {
  if (copies == 1) return grads;
  const at::Tensor each = grads.unflatten(1, {grads.size(1) / copies, copies});
  const bool is_narrow = grads.element_size() < 4;
  const auto copy = [&](int64_t i) { return is_narrow ? each.select(2, i).to(at::kFloat) : each.select(2, i); };
  at::Tensor sum = copy(0).clone();
  for (int64_t i = 1; i < copies; ++i) sum.add_(copy(i));
  return sum.to(grads.scalar_type());
}

class HeadExchange : public torch::autograd::Function<HeadExchange> {
 public:
  static variable_list forward(AutogradContext* context, const std::shared_ptr<Comm>& comm, at::TensorList tensors) {
    std::vector<at::Tensor> whole;
    for (const at::Tensor& tensor : tensors) {
      const int64_t copies = copies_of(tensor, comm->world_size());
      whole.push_back(copies == 1 ? tensor : tensor.repeat_interleave(copies, 1));
      context->saved_data[key(whole.size() - 1)] = copies;
    }
    context->saved_data["comm"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(comm));
    return exchange_all(*comm, whole, 1, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto held = context->saved_data["comm"].toCapsule();
    std::vector<at::Tensor> back = exchange_all(*static_cast<Held&>(*held).comm, grads, 2, 1);
    variable_list result{at::Tensor()};  // `comm` has no gradient
    for (size_t i = 0; i < back.size(); ++i)
      result.push_back(sum_of_copies(back[i], context->saved_data[key(i)].toInt()));
    return result;
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<Comm> comm_) : comm(std::move(comm_)) {}
    std::shared_ptr<Comm> comm;
  };

  static std::string key(size_t index) { return concat("copies of ", index); }
  static int64_t copies_of(const at::Tensor& tensor, int64_t ranks) {
    return tensor.size(1) % ranks == 0 ? 1 : ranks / tensor.size(1);
  }
};

class GroupMean : public torch::autograd::Function<GroupMean> {
 public:
  static at::Tensor forward(AutogradContext* context, const std::shared_ptr<Comm>& comm, const at::Tensor& loss,
                            const at::Tensor& count) {
    const int64_t ranks = comm->world_size();
    const at::Tensor mine = at::stack({loss.to(at::kDouble).reshape({}), count.to(loss.device(), at::kDouble)});
    const at::Tensor all = at::empty({ranks, 2}, mine.options());
    finish(*comm, comm->all_gather(span_of(all), span_of(mine), kRows), {mine, all});
    const at::Tensor losses = all.select(1, 0), counts = all.select(1, 1), total = counts.sum().clamp_min(1);
    // A rank with a count of 0 may have NaN as its loss, and NaN * 0 is NaN. So the loss of a rank with a count of 0 is
    // replaced by 0.
    const at::Tensor mean = (at::where(counts > 0, losses, at::zeros_like(losses)) * counts).sum() / total;
    context->save_for_backward({counts.select(0, comm->rank()) * static_cast<double>(ranks) / total});
    return mean.to(loss.scalar_type()).reshape(loss.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor weight = context->get_saved_variables().front();
    return {at::Tensor(), (grads.front() * weight).to(grads.front().scalar_type()), at::Tensor()};
  }
};

}  // namespace

SequenceGroup::SequenceGroup(std::shared_ptr<Comm> comm) : comm_(comm ? std::move(comm) : make_single_comm()) {}

int SequenceGroup::rank() const {
  return comm_->rank();
}
int SequenceGroup::size() const {
  return comm_->world_size();
}
std::string_view SequenceGroup::transport() const {
  return comm_->transport();
}
void SequenceGroup::abort(std::string_view reason) const noexcept {
  comm_->abort(reason);
}

std::vector<at::Tensor> SequenceGroup::exchange(const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    ZS_CHECK(tensor.dim() == 4, "exchange of heads for sequence: a tensor has ", tensor.dim(), " dimensions, not 4");
    ZS_CHECK(tensor.size(1) > 0 && (tensor.size(1) % size() == 0 || size() % tensor.size(1) == 0),
             "exchange of heads for sequence: dimension 1 has ", tensor.size(1),
             " elements, which is neither a multiple nor a divisor of the ", size(), " ranks of the sequence group");
  }
  return tensors.empty() || size() == 1 ? tensors : HeadExchange::apply(comm_, at::TensorList(tensors));
}

at::Tensor SequenceGroup::gather(const at::Tensor& piece) const {
  if (size() == 1) return piece;
  const at::Tensor mine = piece.contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), size());
  const at::Tensor all = at::empty(shape, mine.options());
  finish(*comm_, comm_->all_gather(span_of(all), span_of(mine), kRows), {mine, all});
  return all.movedim(0, 1).flatten(1, 2);
}

at::Tensor SequenceGroup::mean(const at::Tensor& loss, const at::Tensor& count) const {
  ZS_CHECK(loss.numel() == 1 && count.numel() == 1, "mean of the sequence group: the loss has ", loss.numel(),
           " elements and the count ", count.numel(), ", not one each");
  return size() == 1 ? loss : GroupMean::apply(comm_, loss, count.reshape({}));
}

std::vector<std::vector<int64_t>> SequenceGroup::tell(const std::vector<int64_t>& numbers) const {
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor mine = at::empty({count}, at::kLong), all = at::empty({size(), count}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), mine.data_ptr<int64_t>());
  Comm& host = comm_->host();
  finish(host, host.all_gather(span_of(all), span_of(mine), kRows), {mine, all});
  std::vector<std::vector<int64_t>> by_rank;
  const int64_t* const told = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < size(); ++rank) by_rank.emplace_back(told + rank * count, told + (rank + 1) * count);
  return by_rank;
}

std::vector<std::vector<at::Tensor>> SequenceGroup::deal(const std::vector<at::Tensor>& mine,
                                                         const std::vector<std::vector<at::Tensor>>& like) const {
  const auto ranks = static_cast<int64_t>(size());
  ZS_CHECK(like.size() == static_cast<size_t>(ranks), "deal of rows: ", like.size(), " ranks are described, not ",
           ranks);
  const auto bytes_of = [ranks](const at::Tensor& rows) { return static_cast<int64_t>(rows.nbytes()) / ranks; };
  int64_t longest = 0;
  for (const std::vector<at::Tensor>& given : like) {
    int64_t bytes = 0;
    for (const at::Tensor& rows : given) {
      ZS_CHECK(rows.dim() >= 2 && rows.size(1) % ranks == 0, "deal of rows: the shape ", rows.sizes(),
               " cannot be cut into ", ranks, " pieces at dimension 1");
      bytes += bytes_of(rows);
    }
    longest = std::max(longest, bytes);
  }
  const at::Tensor in = at::zeros({ranks, longest}, at::kByte), out = at::empty_like(in);
  for (int64_t to = 0; to < ranks; ++to) {
    int64_t offset = 0;
    for (const at::Tensor& rows : mine) {
      const at::Tensor piece = pieces_of(rows, 1, ranks).select(0, to).contiguous();
      in.select(0, to).narrow(0, offset, bytes_of(rows)).copy_(piece.view(-1).view(at::kByte));
      offset += bytes_of(rows);
    }
  }
  Comm& host = comm_->host();
  if (longest > 0) finish(host, host.all_to_all(span_of(out), span_of(in), kRows), {in, out});
  std::vector<std::vector<at::Tensor>> pieces(like.size());
  for (size_t from = 0; from < like.size(); ++from) {
    int64_t offset = 0;
    for (const at::Tensor& rows : like[from]) {
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[1] /= ranks;
      const at::Tensor bytes = out.select(0, static_cast<int64_t>(from)).narrow(0, offset, bytes_of(rows)).clone();
      pieces[from].push_back(bytes.view(rows.scalar_type()).view(shape));
      offset += bytes_of(rows);
    }
  }
  return pieces;
}

}  // namespace zeroshard
