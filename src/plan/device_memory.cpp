#include "plan/device_memory.h"

#include <algorithm>

#include "base/align.h"
#include "base/check.h"

namespace zeroshard {
namespace {

int64_t on_device(int64_t bytes) {
  return align_up(bytes, kDeviceBlock);
}

// Returns the bytes of a group's gradients while they wait to be packed. They have the parameters' dtype, as autograd
// gives them.
int64_t waiting_bytes(const UnitLayout& unit, const FlatGroup& group) {
  int64_t bytes = 0;
  for (const size_t i : group.params) bytes += on_device(unit.params[i].numel() * element_size(group.dtype));
  return std::min(bytes, kWaitingBytes);
}

int64_t made_bytes(const UnitLayout& unit, const UnitPlacement& placement) {
  int64_t bytes = placement.parameters == Placement::kPersistent ? unit.full_bytes() : 0;
  for (size_t g = 0; g < unit.groups.size(); ++g) {
    const GroupPlacement& place = placement.groups[g];
    for (const Stored* held : {&place.parameters, &place.master_weights, &place.moments})
      bytes += held->bytes_on(Tier::kDevice, unit.groups[g].layout);
  }
  return bytes;
}

}  // namespace

int64_t compare_bytes(int64_t numel) {
  return on_device(numel) + 2 * on_device(numel * element_size(DType::kFloat32));
}

int64_t decoded_bytes(int64_t numel, int slots) {
  return slots * on_device(std::min(numel, kDecodedNumel) * element_size(DType::kFloat32));
}

int64_t step_temporaries(std::span<const UnitLayout> units) {
  int64_t most = 0;
  for (const UnitLayout& unit : units)
    for (const FlatGroup& group : unit.groups)
      if (group.requires_grad) most = std::max({most, kSquaresBytes, waiting_bytes(unit, group)});
  return most;
}

int64_t coded_temporaries(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements) {
  int64_t most = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const Stored& moments = placements[u].groups[g].moments;
      if (moments.scales == Tier::kDevice)
        most = std::max(most, decoded_bytes(moments.numel(units[u].groups[g].layout), moments.values));
    }
  }
  return most;
}

UnitOrigin origin_on_device(const UnitLayout& unit) {
  UnitOrigin origin;
  for (const ParamSpec& param : unit.params)
    origin.device_bytes += on_device(param.numel() * element_size(param.dtype));
  return origin;
}

int64_t init_staging(const UnitLayout& unit) {
  int64_t most = 0;
  for (const FlatGroup& group : unit.groups) {
    const DType dtype = group.requires_grad ? DType::kFloat32 : group.dtype;
    most = std::max(most, group.layout.padded_numel() * element_size(dtype));
  }
  return most;
}

int64_t init_peak(std::span<const UnitLayout> units, const PlanReport& report, std::span<const UnitOrigin> origins) {
  ZS_ASSERT(origins.size() == units.size() && report.placements.size() == units.size());
  int64_t held = report.shard_copies.bytes() + report.refresh_codes.bytes();
  for (const UnitOrigin& origin : origins) held += origin.device_bytes;
  int64_t peak = held;
  for (size_t u = 0; u < units.size(); ++u) {
    held += made_bytes(units[u], report.placements[u]);
    peak = std::max(peak, held + (origins[u].is_staged ? init_staging(units[u]) : 0));
    held -= origins[u].device_bytes;
  }
  const int64_t all = report.bytes.total(Tier::kDevice) - report.bytes.at(Category::kTemporaries, Tier::kDevice);
  return std::max(peak, all);
}

}  // namespace zeroshard
