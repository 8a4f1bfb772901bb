#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/format.h"
#include "comm/comm.h"
#include "support/random.h"
#include "support/tree_sum.h"

// What every implementation of Comm must do, against plain references. Throws std::runtime_error on a difference, so
// that it also runs in fork()ed ranks. Host memory only.
namespace zeroshard::testing {

template <typename... Args>
void require(bool condition, const Args&... message) {
  if (!condition) throw std::runtime_error(concat(message...));
}

// The input of `rank`: the same on every rank that asks. Sums of fp32 values like these depend on their order.
inline std::vector<float> input_of(int rank, int64_t numel, uint64_t seed) {
  Random random(seed * 7919 + static_cast<uint64_t>(rank));
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values)
    value = std::ldexp(static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000),
                       static_cast<int>(random() % 30) - 15);
  return values;
}

inline std::vector<float> sum_of(int world_size, int64_t numel, uint64_t seed) {
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < world_size; ++rank) inputs.push_back(input_of(rank, numel, seed));
  std::vector<float> sum, values(inputs.size());
  for (size_t i = 0; i < static_cast<size_t>(numel); ++i) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) values[rank] = inputs[rank][i];
    sum.push_back(tree_sum<float>(values));
  }
  return sum;
}

// Memory from allocate(), or from the heap and so unknown to the transport.
class Buffer {
 public:
  Buffer(Comm& comm, int64_t numel, bool direct) : numel_(numel) {
    if (direct) {
      allocation_ = comm.allocate(numel * 4, "test buffer");
    } else {
      heap_.resize(static_cast<size_t>(numel) + 1);
    }
  }
  float* data() { return allocation_ ? static_cast<float*>(allocation_->data()) : heap_.data(); }
  Span span() { return {data(), numel_, DType::kFloat32}; }
  Span slice(int64_t begin, int64_t numel) { return {data() + begin, numel, DType::kFloat32}; }
  void fill(const std::vector<float>& values, int64_t begin = 0) {
    if (!values.empty()) std::memcpy(data() + begin, values.data(), values.size() * 4);
  }
  void expect(const std::vector<float>& values, int64_t begin, const std::string& what) {
    for (size_t i = 0; i < values.size(); ++i) {
      const float got = data()[static_cast<size_t>(begin) + i];
      require(std::memcmp(&got, &values[i], 4) == 0, what, ": element ", begin + static_cast<int64_t>(i), " is ", got,
              ", expected ", values[i]);
    }
  }

 private:
  std::unique_ptr<Allocation> allocation_;
  std::vector<float> heap_;
  int64_t numel_;
};

inline void check_gather(Comm& comm, int64_t numel, bool direct, bool in_place, uint64_t seed) {
  Buffer full(comm, numel * comm.world_size(), direct), shard(comm, numel, direct);
  const Span own = in_place ? full.slice(comm.rank() * numel, numel) : shard.span();
  const std::vector<float> mine = input_of(comm.rank(), numel, seed);
  if (numel > 0) std::memcpy(own.data, mine.data(), mine.size() * 4);
  const auto work = comm.all_gather(full.span(), own, "gather");
  work->wait();
  work->wait();  // does nothing
  for (int rank = 0; rank < comm.world_size(); ++rank)
    full.expect(input_of(rank, numel, seed), rank * numel, concat("all_gather of ", numel, " from rank ", rank));
  comm.barrier("inputs may change");
}

struct Promises {
  bool rank_order = true;  // reduce_scatter sums in the canonical order
  int hosts = 0;           // an exchange gives a sum in fp32 for each of so many hosts; 0: the piece of each rank
};

// Returns the sum of an exchange's pieces, in the canonical order.
inline std::vector<float> sum_of_pieces(const Exchange& exchange, int64_t numel) {
  require(exchange.dtype() == DType::kFloat32, "the pieces are ", name_of(exchange.dtype()));
  std::vector<float> sum, values(exchange.pieces().size());
  for (int64_t i = 0; i < numel; ++i) {
    for (size_t p = 0; p < values.size(); ++p) values[p] = static_cast<const float*>(exchange.pieces()[p])[i];
    sum.push_back(tree_sum<float>(values));
  }
  return sum;
}

inline void check_reductions(Comm& comm, int64_t numel, bool direct, uint64_t seed, const Promises& promises) {
  const int pieces = promises.hosts > 0 && numel > 0 ? promises.hosts : comm.world_size();
  const int64_t total = numel * comm.world_size();
  Buffer full(comm, total, direct), out(comm, numel, false), scratch(comm, total, direct);
  full.fill(input_of(comm.rank(), total, seed));
  std::vector<float> sum = sum_of(comm.world_size(), total, seed);
  const std::vector<float> mine(sum.begin() + comm.rank() * numel, sum.begin() + (comm.rank() + 1) * numel);
  if (promises.rank_order) {
    comm.reduce_scatter(out.span(), full.span(), "reduce")->wait();
    out.expect(mine, 0, "reduce_scatter");
  }
  const auto exchange = comm.exchange(full.span(), scratch.span(), "exchange");
  exchange->wait();
  require(static_cast<int>(exchange->pieces().size()) == pieces, "pieces: ", exchange->pieces().size());
  out.fill(sum_of_pieces(*exchange, numel));
  exchange->release();
  exchange->drain();
  full.fill(input_of(comm.rank(), total, seed + 1));  // allowed from here on
  out.expect(mine, 0, "sum of exchanged pieces");
  comm.barrier("reduced");
}

inline void check_all_to_all(Comm& comm, int64_t numel, bool direct, uint64_t seed) {
  const int64_t total = numel * comm.world_size();
  Buffer in(comm, total, direct), out(comm, total, direct);
  in.fill(input_of(comm.rank(), total, seed));
  comm.all_to_all(out.span(), in.span(), "transpose")->wait();
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const std::vector<float> theirs = input_of(rank, total, seed);
    out.expect({theirs.begin() + comm.rank() * numel, theirs.begin() + (comm.rank() + 1) * numel}, rank * numel,
               concat("all_to_all from rank ", rank));
  }
  comm.barrier("transposed");
}

// Pieces of all sizes, none among them, and a rank that gives or gets nothing at all.
inline void check_all_to_all_v(Comm& comm, int64_t numel, bool direct, uint64_t seed) {
  const int n = comm.world_size();
  Random random(seed);
  std::vector<int64_t> counts;
  for (int i = 0; i < n * n; ++i) counts.push_back(random.between(0, 3) == 0 ? 0 : random.between(0, int(numel)));
  const int idle = random.between(0, 2 * n);
  for (int peer = 0; peer < n && idle < n; ++peer) {
    counts[size_t(idle * n + peer)] = 0;
    if (seed % 2 == 0) counts[size_t(peer * n + idle)] = 0;
  }
  const auto numel_of = [&](int from, int to) { return counts[size_t(from * n + to)]; };
  int64_t sent = 0, received = 0;
  for (int peer = 0; peer < n; ++peer) {
    sent += numel_of(comm.rank(), peer);
    received += numel_of(peer, comm.rank());
  }
  Buffer in(comm, int64_t(n) * numel, direct), out(comm, int64_t(n) * numel, direct);
  in.fill(input_of(comm.rank(), sent, seed));
  const auto work = comm.all_to_all_v(out.slice(0, received), in.slice(0, sent), counts, "pieces");
  work->wait();
  work->wait();
  int64_t at = 0;
  for (int from = 0; from < n; ++from) {
    int64_t begin = 0, all = 0;
    for (int to = 0; to < n; ++to) {
      if (to < comm.rank()) begin += numel_of(from, to);
      all += numel_of(from, to);
    }
    const std::vector<float> theirs = input_of(from, all, seed);
    const int64_t mine = numel_of(from, comm.rank());
    out.expect({theirs.begin() + begin, theirs.begin() + begin + mine}, at, concat("all_to_all_v from rank ", from));
    at += mine;
  }
  work->drain();
  in.fill(std::vector<float>(size_t(sent), -1));
  comm.barrier("pieces have come");
}

inline void check_all_reduce(Comm& comm, int64_t numel, bool direct, uint64_t seed) {
  Buffer data(comm, numel, direct);
  data.fill(input_of(comm.rank(), numel, seed));
  comm.all_reduce(data.span(), ReduceOp::kSum, "sum")->wait();
  data.expect(sum_of(comm.world_size(), numel, seed), 0, "all_reduce sum");

  std::vector<double> doubles(static_cast<size_t>(numel), 0.1 + comm.rank());
  comm.all_reduce({doubles.data(), numel, DType::kFloat64}, ReduceOp::kSum, "doubles")->wait();
  std::vector<double> terms;
  for (int rank = 0; rank < comm.world_size(); ++rank) terms.push_back(0.1 + rank);
  const auto expected = tree_sum<double>(terms);
  for (const double value : doubles) require(value == expected, "fp64 sum is ", value, ", expected ", expected);

  std::vector<int64_t> words(static_cast<size_t>(numel), -(int64_t{1} << 40) * (comm.rank() + 1));
  comm.all_reduce({words.data(), numel, DType::kOther8}, ReduceOp::kMax, "max")->wait();
  for (const int64_t word : words) require(word == -(int64_t{1} << 40), "int64 maximum is ", word);
}

inline void check_broadcast(Comm& comm, int64_t numel, bool direct, uint64_t seed) {
  for (int root = 0; root < comm.world_size(); ++root) {
    Buffer data(comm, numel, direct);
    data.fill(input_of(comm.rank(), numel, seed));
    comm.broadcast(data.span(), root, "broadcast")->wait();
    data.expect(input_of(root, numel, seed), 0, concat("broadcast from ", root));
    data.fill(input_of(comm.rank(), numel, seed + 9));  // allowed: a broadcast is a full synchronisation
  }
}

// Many gathers and exchanges under way at once, waited for in an order of each rank's own.
inline void check_many_in_flight(Comm& comm, bool direct, uint64_t seed) {
  constexpr int kCount = 16;
  constexpr int64_t kNumel = 257;
  const int64_t total = kNumel * comm.world_size();
  std::vector<Buffer> fulls, shards, inputs, scratches;
  for (int i = 0; i < kCount; ++i) {
    fulls.emplace_back(comm, total, direct);
    shards.emplace_back(comm, kNumel, direct);
    inputs.emplace_back(comm, total, direct);
    scratches.emplace_back(comm, total, direct);
  }
  std::vector<std::unique_ptr<Work>> gathers;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (size_t i = 0; i < kCount; ++i) {
    shards[i].fill(input_of(comm.rank(), kNumel, seed + i));
    inputs[i].fill(input_of(comm.rank(), total, seed + 100 + i));
    gathers.push_back(comm.all_gather(fulls[i].span(), shards[i].span(), concat("gather ", i)));
    exchanges.push_back(comm.exchange(inputs[i].span(), scratches[i].span(), concat("exchange ", i)));
  }
  std::vector<size_t> order(2 * kCount);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Random random(seed + static_cast<uint64_t>(comm.rank()));
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t which : order) {
    const size_t i = which / 2;
    if (which % 2 == 0) {
      gathers[i]->wait();
      for (int rank = 0; rank < comm.world_size(); ++rank)
        fulls[i].expect(input_of(rank, kNumel, seed + i), rank * kNumel, concat("gather ", i));
      continue;
    }
    exchanges[i]->wait();
    const std::vector<float> sum = sum_of(comm.world_size(), total, seed + 100 + i);
    require(
        std::memcmp(sum_of_pieces(*exchanges[i], kNumel).data(), sum.data() + comm.rank() * kNumel, kNumel * 4) == 0,
        "exchange ", i, ": the sum of the pieces differs");
    exchanges[i]->release();
  }
  for (auto& exchange : exchanges) exchange->drain();
  comm.barrier("all done");
}

// One rank drains a collective and overwrites its input at once; the others read that input last of all.
inline void check_drained_inputs(Comm& comm, int64_t numel, bool direct, uint64_t seed) {
  constexpr size_t kCount = 8;
  const int world_size = comm.world_size();
  const int64_t total = numel * world_size;
  std::vector<Buffer> shards, fulls, inputs, transposed;
  for (size_t i = 0; i < kCount; ++i) {
    shards.emplace_back(comm, numel, direct);
    fulls.emplace_back(comm, total, direct);
    inputs.emplace_back(comm, total, direct);
    transposed.emplace_back(comm, total, direct);
  }
  for (int early = 0; early < world_size; ++early) {
    std::vector<std::unique_ptr<Work>> gathers, transposals;
    for (size_t i = 0; i < kCount; ++i) {
      shards[i].fill(input_of(comm.rank(), numel, seed + i));
      inputs[i].fill(input_of(comm.rank(), total, seed + 100 + i));
      gathers.push_back(comm.all_gather(fulls[i].span(), shards[i].span(), concat("gather ", i)));
      transposals.push_back(comm.all_to_all(transposed[i].span(), inputs[i].span(), concat("transpose ", i)));
    }
    for (size_t i = 0; i < kCount; ++i) {
      const size_t which = comm.rank() == early ? i : kCount - 1 - i;
      if (comm.rank() == early) {
        gathers[which]->drain();
        shards[which].fill(std::vector<float>(static_cast<size_t>(numel), -1));
        transposals[which]->drain();
        inputs[which].fill(std::vector<float>(static_cast<size_t>(total), -1));
      }
      gathers[which]->wait();
      transposals[which]->wait();
      for (int rank = 0; rank < world_size; ++rank) {
        fulls[which].expect(input_of(rank, numel, seed + which), rank * numel, concat("drained gather ", which));
        const std::vector<float> theirs = input_of(rank, total, seed + 100 + which);
        transposed[which].expect({theirs.begin() + comm.rank() * numel, theirs.begin() + (comm.rank() + 1) * numel},
                                 rank * numel, concat("drained all_to_all ", which));
      }
    }
    comm.barrier("all drained");
  }
}

// More than any transport has room for: waited for in an order of each rank's own, or never before the barrier.
inline void check_any_number_outstanding(Comm& comm, uint64_t seed) {
  constexpr size_t kCount = 500;
  constexpr int64_t kNumel = 3;
  const int world_size = comm.world_size();
  const int64_t total = kNumel * world_size;
  Buffer fulls(comm, total * kCount, true), shards(comm, kNumel * kCount, true);
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < kCount; ++i) {
    shards.fill(input_of(comm.rank(), kNumel, seed + i), int64_t(i) * kNumel);
    works.push_back(
        comm.all_gather(fulls.slice(int64_t(i) * total, total), shards.slice(int64_t(i) * kNumel, kNumel), "many"));
  }
  std::vector<size_t> order(kCount);
  for (size_t i = 0; i < kCount; ++i) order[i] = i;
  Random random(seed + static_cast<uint64_t>(comm.rank()));
  std::shuffle(order.begin(), order.end(), random);
  order.resize(kCount / 2);
  for (const size_t i : order) works[i]->wait();
  comm.barrier("many");
  for (const auto& work : works) work->wait();
  for (size_t i = 0; i < kCount; ++i)
    for (int rank = 0; rank < world_size; ++rank)
      fulls.expect(input_of(rank, kNumel, seed + i), int64_t(i) * total + rank * kNumel, concat("gather ", i));
  comm.barrier("end");
}

// A barrier completes gathers that were not waited for, so that inputs may change after it.
inline void check_barrier_protects_inputs(Comm& comm, uint64_t seed) {
  constexpr int64_t kNumel = 5000;
  Buffer full(comm, kNumel * comm.world_size(), true), shard(comm, kNumel, true);
  shard.fill(input_of(comm.rank(), kNumel, seed));
  const auto work = comm.all_gather(full.span(), shard.span(), "late");
  comm.barrier("before the change");
  shard.fill(input_of(comm.rank(), kNumel, seed + 1));
  work->wait();
  for (int rank = 0; rank < comm.world_size(); ++rank)
    full.expect(input_of(rank, kNumel, seed), rank * kNumel, "gather across a barrier");
  comm.barrier("end");
}

inline void check_conformance(Comm& comm, const Promises& promises = {}) {
  uint64_t seed = 1;
  for (const bool direct : {true, false})
    for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{511}, int64_t{4099}}) {
      for (const bool in_place : {true, false}) check_gather(comm, numel, direct, in_place, ++seed);
      check_reductions(comm, numel, direct, ++seed, promises);
      check_all_to_all(comm, numel, direct, ++seed);
      for (int i = 0; i < 4; ++i) check_all_to_all_v(comm, numel, direct, ++seed);
      check_all_reduce(comm, numel, direct, ++seed);
      check_broadcast(comm, numel, direct, ++seed);
    }
  check_many_in_flight(comm, true, ++seed);
  check_many_in_flight(comm, false, ++seed);
  check_drained_inputs(comm, 300, true, ++seed);
  check_drained_inputs(comm, 300, false, ++seed);
  check_any_number_outstanding(comm, ++seed);
  check_barrier_protects_inputs(comm, ++seed);
}

}  // namespace zeroshard::testing
