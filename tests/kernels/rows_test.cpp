#include "kernels/rows.h"

#include "kernels/support.h"

namespace zeroshard::kernels::test {
namespace {

class Rows : public EachTable {};
ZS_EACH_TABLE(Rows);

std::vector<float> draw(Random& random, int64_t numel) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values) value = normal(random);
  return values;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance, const char* what) {
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << ' ' << i;
}

// All of it in fp64.
struct RmsNormReference {
  RmsNormReference(const RmsNorm& norm, const std::vector<float>& x, const std::vector<float>& dy, int64_t rows)
      : y(x.size()), dx(x.size()), dweight(static_cast<size_t>(norm.features)) {
    const auto n = static_cast<size_t>(norm.features);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      double squares = 0, products = 0;
      for (size_t i = 0; i < n; ++i) {
        const double at = x[row * n + i], weight = double{norm.offset} + norm.weight[i];
        squares += at * at;
        products += dy[row * n + i] * weight * at;
      }
      const double inverse = 1 / std::sqrt(squares / double(n) + norm.eps);
      for (size_t i = 0; i < n; ++i) {
        const double at = x[row * n + i], weight = double{norm.offset} + norm.weight[i];
        y[row * n + i] = at * inverse * weight;
        dx[row * n + i] = dy[row * n + i] * weight * inverse - at * products * inverse * inverse * inverse / double(n);
        dweight[i] += dy[row * n + i] * at * inverse;
      }
    }
  }
  std::vector<double> y, dx, dweight;
};

TEST_P(Rows, RmsNormMatchesReference) {
  SeededRandom random(21);
  for (const int64_t features : {1, 3, 16, 31, 32, 33, 64, 100, 1024, 1500}) {
    for (const float offset : {0.0f, 1.0f}) {
      constexpr int64_t kRows = 5;
      const auto weight = draw(random, features), x = draw(random, kRows * features),
                 dy = draw(random, kRows * features);
      const RmsNorm norm{features, weight.data(), offset, 1e-5};
      std::vector<float> y(x.size()), dx(x.size()), dweight(weight.size()), inverse(kRows);
      table().rms_norm(norm, x.data(), kRows, y.data(), inverse.data());
      table().rms_norm_backward(norm, dy.data(), x.data(), inverse.data(), kRows, dx.data(), dweight.data());
      const RmsNormReference want(norm, x, dy, kRows);
      expect_near(y, want.y, 1e-6, "y");
      expect_near(dx, want.dx, 1e-5, "dx");
      expect_near(dweight, want.dweight, 1e-6, "dweight");
    }
  }
}

TEST_P(Rows, RmsNormHasTheSameBitsAsScalar) {
  SeededRandom random(22);
  for (const int64_t features : {1, 17, 48, 100, 1056}) {
    constexpr int64_t kRows = 3;
    const auto weight = draw(random, features), x = draw(random, kRows * features), dy = draw(random, kRows * features);
    const RmsNorm norm{features, weight.data(), 1, 1e-6};
    const auto run = [&](const KernelTable& table) {
      std::vector<float> inverse(kRows), y(x.size()), dx(x.size()), dweight(weight.size());
      table.rms_norm(norm, x.data(), kRows, y.data(), inverse.data());
      table.rms_norm_backward(norm, dy.data(), x.data(), inverse.data(), kRows, dx.data(), dweight.data());
      return std::vector{inverse, y, dx, dweight};
    };
    EXPECT_EQ(run(table()), run(*scalar_table())) << features;
  }
}

TEST_P(Rows, GradientsThatAreNotWantedAreNotTouched) {
  SeededRandom random(23);
  const auto weight = draw(random, 40), x = draw(random, 80), dy = draw(random, 80);
  const RmsNorm norm{40, weight.data(), 0, 1e-5};
  std::vector<float> y(80), inverse(2), dx(80), dweight(40), alone(80);
  table().rms_norm(norm, x.data(), 2, y.data(), inverse.data());
  table().rms_norm_backward(norm, dy.data(), x.data(), inverse.data(), 2, dx.data(), dweight.data());
  table().rms_norm_backward(norm, dy.data(), x.data(), inverse.data(), 2, alone.data(), nullptr);
  EXPECT_EQ(alone, dx);
  std::vector<float> alone_weight(40);
  table().rms_norm_backward(norm, dy.data(), x.data(), inverse.data(), 2, nullptr, alone_weight.data());
  EXPECT_EQ(alone_weight, dweight);
}

TEST_P(Rows, RotateMatchesReferenceAndTurnsBack) {
  SeededRandom random(24);
  for (const int64_t features : {2, 6, 30, 32, 34, 64, 128}) {
    const int64_t half = features / 2, heads = 3, x_stride = features + 5, y_stride = features + 2;
    const auto x = draw(random, heads * x_stride);
    std::vector<float> cos(static_cast<size_t>(features)), sin(cos.size());
    for (int64_t i = 0; i < half; ++i) {
      const float angle = draw(random, 1).front();
      cos[size_t(i)] = cos[size_t(i + half)] = std::cos(angle);
      sin[size_t(i)] = sin[size_t(i + half)] = std::sin(angle);
    }
    std::vector<float> minus_sin;
    for (const float value : sin) minus_sin.push_back(-value);
    std::vector<float> y(size_t(heads * y_stride), 7), again(size_t(heads * x_stride), 7);
    table().rotate({features, cos.data(), sin.data()}, x.data(), x_stride, heads, y.data(), y_stride);
    table().rotate({features, cos.data(), minus_sin.data()}, y.data(), y_stride, heads, again.data(), x_stride);
    for (int64_t head = 0; head < heads; ++head) {
      const float* const from = x.data() + head * x_stride;
      const float* const to = y.data() + head * y_stride;
      for (int64_t i = 0; i < half; ++i) {
        const size_t a = size_t(i), b = size_t(i + half);
        const float straight1 = from[a] * cos[a], crossed1 = from[b] * sin[a];
        const float straight2 = from[b] * cos[b], crossed2 = from[a] * sin[b];
        ASSERT_EQ(to[a], straight1 - crossed1) << features << ", head " << head << ", feature " << i;
        ASSERT_EQ(to[b], straight2 + crossed2) << features << ", head " << head << ", feature " << i;
        ASSERT_NEAR(again[size_t(head * x_stride) + a], from[a], 1e-5);
        ASSERT_NEAR(again[size_t(head * x_stride) + b], from[b], 1e-5);
      }
      ASSERT_EQ(to[features], 7) << "beyond the row";
    }
  }
}

}  // namespace
}  // namespace zeroshard::kernels::test
