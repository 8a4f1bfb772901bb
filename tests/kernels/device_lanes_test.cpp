// The kernels as a device is given them, run here: their bits are those of the CPU's.
#include "kernels/optim_impl.h"
#include "kernels/simd_four.h"
#include "kernels/support.h"

namespace zeroshard::kernels::test {
namespace {

const KernelTable& lanes() {
  static const KernelTable table = make_device_table<FourLanes>("four lanes");
  return table;
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Begins at an element that may not be one for a whole vector.
Buffer random_buffer(DType dtype, int64_t numel, Random& random, bool special = false) {
  Buffer buffer(dtype, numel, static_cast<int>(random() % 5) * int(element_size(dtype)));
  fill(buffer, random, special);
  return buffer;
}

TEST(DeviceLanes, PackAsTheScalarKernelsDo) {
  SeededRandom random(1);
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (const int64_t numel : lengths()) {
        const Buffer src = random_buffer(from, numel, random, /*special=*/true);
        Buffer dst = random_buffer(to, numel, random), want = dst;
        pack(lanes(), src.at(0), from, dst.data(), to, 0.37f, numel);
        pack(*scalar_table(), src.at(0), from, want.data(), to, 0.37f, numel);
        ASSERT_TRUE(same(dst, want)) << numel;
        pack_add(lanes(), src.at(0), from, dst.data(), to, 0.37f, numel);
        pack_add(*scalar_table(), src.at(0), from, want.data(), to, 0.37f, numel);
        ASSERT_TRUE(same(dst, want)) << numel;
      }
    }
  }
}

TEST(DeviceLanes, AddAnyNumberOfPiecesInOrder) {
  SeededRandom random(2);
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (int count = 1; count <= 9; ++count) {
        const int64_t numel = static_cast<int64_t>(random() % 90);
        const Buffer all = random_buffer(from, numel * count, random);
        std::vector<const void*> pieces;
        for (int p = 0; p < count; ++p)
          pieces.push_back(static_cast<const char*>(all.at(0)) + p * numel * element_size(from));
        for (const bool accumulate : {false, true}) {
          Buffer out = random_buffer(to, numel, random), want = out;
          sum_in_order(lanes(), pieces, from, 0.25f, out.data(), to, accumulate, numel);
          sum_in_order(*scalar_table(), pieces, from, 0.25f, want.data(), to, accumulate, numel);
          ASSERT_TRUE(same(out, want)) << count << " pieces of " << numel;
        }
      }
    }
  }
}

TEST(DeviceLanes, PiecesAtUnequalDistancesAreRefused) {
  const std::vector<float> data(64, 1.0f);
  float out[2] = {};
  std::vector<const void*> pieces;
  for (const int at : {0, 2, 4, 6, 9}) pieces.push_back(data.data() + at);
  EXPECT_ANY_THROW(sum_in_order(lanes(), pieces, DType::kFloat32, 1, out, DType::kFloat32, false, 2));
}

// One update by the lanes and one by the scalar kernels, from the same values.
template <class Update>
void expect_the_same_update(DType grad_dtype, bool has_param, DType param_dtype, int64_t numel, Random& random,
                            const Update& update) {
  Buffer master = random_buffer(DType::kFloat32, numel, random), first = random_buffer(DType::kFloat32, numel, random);
  Buffer second = random_buffer(DType::kFloat32, numel, random);
  for (int64_t i = 0; i < numel; ++i) second.set(i, std::fabs(second.get(i)));
  const Buffer grad = random_buffer(grad_dtype, numel, random);
  Buffer param = random_buffer(param_dtype, numel, random);
  Buffer want_master = master, want_first = first, want_second = second, want_param = param;
  const auto run = [&](const KernelTable& table, Buffer& weights, Buffer& one, Buffer& two, Buffer& low) {
    StepBuffers buffers{static_cast<float*>(weights.data()),
                        grad.at(0),
                        grad_dtype,
                        has_param ? low.data() : nullptr,
                        param_dtype,
                        0.43f,
                        numel};
    update(table, buffers, static_cast<float*>(one.data()), static_cast<float*>(two.data()));
  };
  run(lanes(), master, first, second, param);
  run(*scalar_table(), want_master, want_first, want_second, want_param);
  ASSERT_TRUE(same(master, want_master)) << numel;
  ASSERT_TRUE(same(first, want_first)) << numel;
  ASSERT_TRUE(same(second, want_second)) << numel;
  ASSERT_TRUE(same(param, want_param)) << numel;
}

template <class Update>
void expect_the_same_updates(uint64_t seed, const Update& update) {
  SeededRandom random(seed);
  for (const DType grad : kTypes) {
    for (const int64_t numel : lengths()) {
      expect_the_same_update(grad, /*has_param=*/false, DType::kFloat32, numel, random, update);
      for (const DType param : kTypes) expect_the_same_update(grad, /*has_param=*/true, param, numel, random, update);
    }
  }
}

TEST(DeviceLanes, UpdateAsTheScalarKernelsDo) {
  for (const bool decoupled : {false, true}) {
    const AdamArgs args{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = decoupled, .step = 3};
    expect_the_same_updates(3, [&](const KernelTable& table, const StepBuffers& buffers, float* first, float* second) {
      adam(table, buffers, first, second, args);
    });
  }
  for (const bool nesterov : {false, true}) {
    const SgdArgs args{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = nesterov};
    expect_the_same_updates(4, [&](const KernelTable& table, const StepBuffers& buffers, float* first, float*) {
      sgd(table, buffers, first, args);
    });
  }
  expect_the_same_updates(5, [](const KernelTable& table, const StepBuffers& buffers, float* first, float*) {
    lion(table, buffers, first, {.lr = 0.01, .weight_decay = 0.1});
  });
  expect_the_same_updates(6, [](const KernelTable& table, const StepBuffers& buffers, float*, float* second) {
    adagrad(table, buffers, second, {.lr = 0.01, .lr_decay = 0.01, .weight_decay = 0.1, .step = 2});
  });
}

}  // namespace
}  // namespace zeroshard::kernels::test
