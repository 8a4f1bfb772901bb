#include "engine/memory_needs.h"

#include "base/align.h"
#include "base/format.h"
#include "base/shape_text.h"
#include "device/dtype.h"

namespace zeroshard {

std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units) {
  std::vector<UnitOrigin> origins;
  for (const UnitDefinition& unit : units) {
    UnitOrigin& origin = origins.emplace_back();
    origin.is_staged = !unit.values;
    if (unit.values) continue;
    for (const ParamDefinition& param : unit.params) {
      int64_t bytes = int64_t(c10::elementSize(param.dtype));
      for (const int64_t size : param.shape) bytes *= size;
      origin.device_bytes += align_up(bytes, kDeviceBlock);
    }
  }
  return origins;
}

std::string memory_needs_text(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak) {
  const ParamSpec* largest = nullptr;
  const auto bytes_of = [](const ParamSpec& param) { return param.numel() * element_size(param.dtype); };
  for (const UnitLayout& unit : layouts)
    for (const ParamSpec& param : unit.params)
      if (!largest || bytes_of(param) > bytes_of(*largest)) largest = &param;
  const int64_t device = planned.total(Tier::kDevice), host = planned.total(Tier::kHost);
  std::string text = concat(": each rank needs ", device, " bytes for this model, activations aside");
  if (host > 0) text += concat(", and ", host, " of the host's memory beside the device");
  if (init_peak > device)
    text += concat(", and up to ", init_peak, " while the engine is built, if the model lies on the device");
  if (largest) {
    text += concat("; its largest parameter is '", largest->name(), "' ", shape_text(largest->shape), " of ",
                   bytes_of(*largest), " bytes");
  }
  return text + ". Shard it over more ranks, at stage 3, or train it in 16 bits: `zeroshard plan` tells what fits";
}

}  // namespace zeroshard
