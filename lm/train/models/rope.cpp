#include "train/models/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <numbers>

#include "ops/row_ops.h"

namespace zeroshard {
namespace {

// Returns `frequencies` with long wavelengths stretched by `factor`, as in Llama 3.1. Short wavelengths stay, and those
// between are stretched by less.
at::Tensor stretch_long_waves(const at::Tensor& frequencies, Fields& scaling) {
  const double factor = scaling.number("factor");
  const double low = scaling.number("low_freq_factor"), high = scaling.number("high_freq_factor");
  const double length = static_cast<double>(scaling.positive("original_max_position_embeddings"));
  if (factor < 1) scaling.fail("factor", "must be at least 1");
  if (low <= 0) scaling.fail("low_freq_factor", "must be greater than 0");
  if (high <= low) scaling.fail("high_freq_factor", "must be greater than low_freq_factor");
  const at::Tensor waves = 2 * std::numbers::pi / frequencies;
  const at::Tensor stretched = at::where(waves > length / low, frequencies / factor, frequencies);
  const at::Tensor share = (length / waves - low) / (high - low);
  const at::Tensor ramp = (1 - share) * stretched / factor + share * stretched;
  const at::Tensor between = waves.ge(length / high).logical_and(waves.le(length / low));
  return at::where(between, ramp, stretched);
}

}  // namespace

Rope::Rope(Fields& fields, int64_t head_dim, double default_theta) {
  if (head_dim % 2 != 0) fields.fail("head_dim", "must be even: rotary positions rotate pairs of features");
  double theta = fields.number("rope_theta", default_theta);
  std::optional<Fields> scaling = fields.object("rope_scaling");
  if (auto parameters = fields.object("rope_parameters")) scaling = std::move(parameters);
  std::string type = "default";
  if (scaling) {
    theta = scaling->number("rope_theta", theta);
    type = scaling->text("rope_type", scaling->text("type", "default"));
    scaling->require("partial_rotary_factor", 1.0);
  }
  if (theta <= 0) fields.fail("rope_theta", "must be greater than 0");
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  frequencies_ = 1.0 / at::pow(theta, exponents);
  if (type == "linear") {
    frequencies_ = frequencies_ / scaling->number("factor");
  } else if (type == "llama3") {
    frequencies_ = stretch_long_waves(frequencies_, *scaling);
  } else if (type != "default") {
    scaling->fail(scaling->has("rope_type") ? "rope_type" : "type", "is not supported; default, linear and llama3 are");
  }
  if (scaling) scaling->finish();
}

Rope::Angles Rope::angles(const at::Tensor& positions, at::ScalarType dtype) {
  frequencies_ = frequencies_.to(positions.device());
  const at::Tensor half = positions.unsqueeze(-1).to(at::kFloat) * frequencies_;
  const at::Tensor full = at::cat({half, half}, -1).unsqueeze(1);
  return {full.cos().to(dtype), full.sin().to(dtype)};
}

at::Tensor Rope::rotate(const at::Tensor& x, const Angles& angles) {
  if (fits_row_ops(x) && fits_row_ops(angles.cos)) return zeroshard::rotate(x, angles.cos, angles.sin);
  const auto halves = x.chunk(2, -1);
  return x * angles.cos + at::cat({-halves[1], halves[0]}, -1) * angles.sin;
}

}  // namespace zeroshard
