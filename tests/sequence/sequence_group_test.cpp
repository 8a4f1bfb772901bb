#include "zeroshard/sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "support/comm_world.h"
#include "support/expect.h"
#include "support/random_tensor.h"
#include "support/test_comms.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::random_tensor;

constexpr int64_t kBatch = 2, kWidth = 4;

// Runs `body` on threads; its tensors are made and read there.
void on_ranks(int world_size, const std::function<void(SequenceGroup&, RecordingComm&)>& body) {
  const std::vector<std::string> errors = testing::run_local_world(world_size, [&](Comm& comm) {
    const auto recording = std::make_shared<RecordingComm>(comm);
    SequenceGroup group(recording);
    body(group, *recording);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

at::Tensor piece_of(const at::Tensor& whole, int64_t dim, const SequenceGroup& group) {
  return whole.chunk(group.size(), dim).at(static_cast<size_t>(group.rank()));
}

void expect_refused(SequenceGroup& group, const at::Tensor& tensor, std::initializer_list<std::string> parts) {
  try {
    group.exchange({tensor});
    ADD_FAILURE() << "no error for " << tensor.sizes();
  } catch (const ValueError& error) {
    testing::expect_contains(error.what(), parts);
  }
}

TEST(SequenceGroup, EachRankGetsWholeRowsOfItsHeads) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [ranks](SequenceGroup& group, RecordingComm&) {
      const at::Tensor whole = random_tensor({kBatch, 2 * ranks, 3 * ranks, kWidth}, 1);
      const at::Tensor mine = group.exchange({piece_of(whole, 2, group)}).front();
      EXPECT_TRUE(at::equal(mine, piece_of(whole, 1, group)));
      const at::Tensor back = group.exchange({mine.transpose(1, 2)}).front();
      EXPECT_TRUE(at::equal(back, piece_of(whole, 2, group).transpose(1, 2)));
    });
  }
}

TEST(SequenceGroup, AttentionHasTheBitsOfOneRankAndGradientsOfReplicatedHeadsAreSums) {
  for (const int kv_heads : {4, 2, 1}) {
    const at::Tensor q = random_tensor({kBatch, 4, 8, kWidth}, 1), k = random_tensor({kBatch, kv_heads, 8, kWidth}, 2),
                     v = random_tensor({kBatch, kv_heads, 8, kWidth}, 3),
                     of_out = random_tensor({kBatch, 8, 4, kWidth}, 4);
    const auto attend = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      const int64_t groups = q.size(1) / k.size(1);
      return at::scaled_dot_product_attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), {}, 0,
                                              true)
          .transpose(1, 2);
    };
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& tensor : {q, k, v}) leaves.push_back(tensor.clone().requires_grad_());
    const at::Tensor expected = attend(leaves[0], leaves[1], leaves[2]);
    expected.backward(of_out);
    on_ranks(4, [&](SequenceGroup& group, RecordingComm& comm) {
      std::vector<at::Tensor> mine;
      for (const at::Tensor& tensor : {q, k, v}) mine.push_back(piece_of(tensor, 2, group).clone().requires_grad_());
      const std::vector<at::Tensor> heads = group.exchange(mine);
      EXPECT_EQ(heads[1].size(1), 1);
      const at::Tensor out = group.exchange({attend(heads[0], heads[1], heads[2])}).front();
      EXPECT_TRUE(at::equal(out, piece_of(expected.detach(), 1, group)));
      // This rank sends 3 of 4 pieces: of q and of the result 4 heads each, of k and v as many as there are copies.
      const int64_t row = kBatch * 2 * kWidth * 4;
      EXPECT_EQ(comm.bytes(OpKind::kAllToAll), row * (4 + 4 + 4 + 4));
      EXPECT_EQ(comm.count(OpKind::kAllToAll), 2);
      comm.reset();
      out.backward(piece_of(of_out, 1, group));
      EXPECT_EQ(comm.bytes(OpKind::kAllToAll), row * (4 + 4 + 4 + 4));
      EXPECT_EQ(comm.calls().size(), 2U);
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_TRUE(mine[i].grad().allclose(piece_of(leaves[i].grad(), 2, group), 1e-5, 1e-6)) << i;
    });
  }
}

TEST(SequenceGroup, BytesOfALayerAreThoseOfTheFormula) {
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [ranks](SequenceGroup& group, RecordingComm& comm) {
      const int64_t heads = 8, kv_heads = 4, length = 16, local = length / ranks;
      const at::Tensor q = at::ones({kBatch, heads, local, kWidth}, at::kBFloat16).requires_grad_(),
                       kv = at::ones({kBatch, kv_heads, local, kWidth}, at::kBFloat16).requires_grad_();
      const std::vector<at::Tensor> whole = group.exchange({q, kv, kv});
      const at::Tensor out = group.exchange({whole[0].transpose(1, 2)}).front();
      // What RecordingComm counts includes the piece that a rank keeps.
      const int64_t elements = 2 * (heads + kv_heads) * kWidth * local * kBatch;
      EXPECT_EQ(comm.bytes(OpKind::kAllToAll), 2 * elements);
      comm.reset();
      (out.sum() + whole[1].sum() + whole[2].sum()).backward();
      EXPECT_EQ(comm.bytes(OpKind::kAllToAll), 2 * elements);
    });
  }
}

TEST(SequenceGroup, CopiesOfAHeadAreSummedInRankOrder) {
  on_ranks(4, [](SequenceGroup& group, RecordingComm&) {
    const at::Tensor head = at::ones({1, 1, 1, 1}, at::kBFloat16).requires_grad_();
    const at::Tensor mine = group.exchange({head}).front();
    // In 16 bits, 256 + 1 is 256: the sum is rounded once.
    const double of_rank[] = {256, 1, 1, 1};
    mine.backward(at::full({1, 1, 4, 1}, of_rank[group.rank()], at::kBFloat16));
    EXPECT_EQ(head.grad().item<float>(), 260);
  });
}

TEST(SequenceGroup, TensorsOfSeveralDtypesAreExchangedEachInItsOwn) {
  on_ranks(2, [](SequenceGroup& group, RecordingComm& comm) {
    const at::Tensor whole = random_tensor({1, 2, 6, 3}, 7);
    const at::Tensor mine = piece_of(whole, 2, group);
    const std::vector<at::Tensor> got = group.exchange({mine, mine.to(at::kBFloat16), mine.to(at::kDouble)});
    EXPECT_EQ(comm.count(OpKind::kAllToAll), 3);
    EXPECT_TRUE(at::equal(got[0], piece_of(whole, 1, group)));
    EXPECT_TRUE(at::equal(got[1], piece_of(whole, 1, group).to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(got[2], piece_of(whole, 1, group).to(at::kDouble)));
  });
}

TEST(SequenceGroup, ARankOfItsOwnHasWholeRows) {
  const SequenceGroup alone(nullptr);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rank(), 0);
  const at::Tensor heads = random_tensor({kBatch, 3, 5, kWidth}, 1), loss = at::full({}, 2.5);
  EXPECT_TRUE(at::equal(alone.exchange({heads}).front(), heads));
  EXPECT_TRUE(at::equal(alone.gather(heads), heads));
  EXPECT_TRUE(at::equal(alone.mean(loss, at::full({}, 3)), loss));
  EXPECT_EQ(alone.tell({4, 5}), (std::vector<std::vector<int64_t>>{{4, 5}}));
}

TEST(SequenceGroup, HeadsThatDoNotFitAreRefusedBeforeTheExchange) {
  on_ranks(2, [](SequenceGroup& group, RecordingComm& comm) {
    expect_refused(group, at::ones({1, 3, 2, 2}), {"3 elements", "2 ranks of the sequence group"});
    expect_refused(group, at::ones({1, 2, 2}), {"3 dimensions, not 4"});
    EXPECT_TRUE(comm.calls().empty());
  });
}

TEST(SequenceGroup, TheMeanIsWeightedAndARankWithoutWordsCountsNothing) {
  on_ranks(3, [](SequenceGroup& group, RecordingComm&) {
    const double losses[] = {2, 5, std::numeric_limits<double>::quiet_NaN()};
    const int64_t counts[] = {3, 1, 0};
    const auto rank = static_cast<size_t>(group.rank());
    at::Tensor loss = at::full({}, losses[rank], at::kFloat).requires_grad_();
    const at::Tensor mean = group.mean(loss, at::full({}, counts[rank], at::kLong));
    EXPECT_EQ(mean.item<float>(), 2.75F);
    mean.backward();
    // Of three ranks that each have the mean.
    EXPECT_EQ(loss.grad().item<float>(), 3 * static_cast<float>(counts[rank]) / 4);
  });
}

TEST(SequenceGroup, RowsAreDealtAndPiecesGathered) {
  on_ranks(3, [](SequenceGroup& group, RecordingComm&) {
    const auto rows = [](int64_t rank) {
      return std::vector<at::Tensor>{random_tensor({rank + 1, 3 * (rank + 2)}, static_cast<uint64_t>(rank)),
                                     random_tensor({rank + 1, 3 * (rank + 2), 2}, 9).gt(0)};
    };
    std::vector<std::vector<at::Tensor>> like{rows(0), rows(1), {}};  // the last rank has no more
    const std::vector<at::Tensor> mine = group.rank() < 2 ? rows(group.rank()) : std::vector<at::Tensor>{};
    const std::vector<std::vector<at::Tensor>> pieces = group.deal(mine, like);
    ASSERT_EQ(pieces.size(), 3U);
    EXPECT_TRUE(pieces[2].empty());
    for (int64_t from = 0; from < 2; ++from)
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor whole = rows(from)[i];
        const at::Tensor piece = pieces[static_cast<size_t>(from)][i];
        EXPECT_TRUE(at::equal(piece, piece_of(whole, 1, group)));
        EXPECT_TRUE(at::equal(group.gather(piece), whole));
      }
    const std::vector<std::vector<int64_t>> told = group.tell({group.rank(), 7});
    EXPECT_EQ(told, (std::vector<std::vector<int64_t>>{{0, 7}, {1, 7}, {2, 7}}));
  });
}

}  // namespace
}  // namespace zeroshard
