#include "engine/same_on_ranks.h"

#include <algorithm>

#include "base/check.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

// Returns "rank 2" or "ranks 0, 1, 3".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i > 0 ? ", " : "", ranks[i]);
  return text;
}

// Returns a text that says which ranks differ, given every rank's hash of one tensor; "" if none does.
std::string disagreement(const std::vector<int64_t>& hashes) {
  const auto votes = [&](int64_t hash) { return std::count(hashes.begin(), hashes.end(), hash); };
  const int64_t usual =
      *std::max_element(hashes.begin(), hashes.end(), [&](int64_t a, int64_t b) { return votes(a) < votes(b); });
  std::vector<int> same, others;
  for (size_t rank = 0; rank < hashes.size(); ++rank)
    (hashes[rank] == usual ? same : others).push_back(static_cast<int>(rank));
  return others.empty() ? "" : concat(ranks_text(others), " and ", ranks_text(same), " hold different bits");
}

}  // namespace

void check_same_on_ranks(Comm& ranks, const std::vector<std::pair<std::string, at::Tensor>>& replicas,
                         std::string_view advice) {
  Comm& comm = ranks.host();
  if (comm.world_size() == 1 || replicas.empty()) return;
  const auto count = int64_t(replicas.size());
  std::vector<int64_t> mine(replicas.size());
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor host = replicas[size_t(i)].second.detach().contiguous().cpu();
    mine[size_t(i)] = int64_t(hash_bytes(host.const_data_ptr(), int64_t(host.nbytes())));
  }
  const auto received = comm.allocate(count * comm.world_size() * int64_t{sizeof(int64_t)}, "replicas");
  comm.all_gather({received->data(), count * comm.world_size(), DType::kOther8}, {mine.data(), count, DType::kOther8},
                  "replicas")
      ->wait();
  comm.barrier("replicas");  // `mine` must not change until every rank has read it
  const auto* const all = static_cast<const int64_t*>(received->data());
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> hashes;
    for (int rank = 0; rank < comm.world_size(); ++rank) hashes.push_back(all[rank * count + i]);
    const std::string wrong = disagreement(hashes);
    if (!wrong.empty())
      throw StateError(
          concat("'", replicas[size_t(i)].first, "' should be the same on every rank, but ", wrong, ". ", advice));
  }
}

}  // namespace zeroshard
