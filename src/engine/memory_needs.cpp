#include "engine/memory_needs.h"

#include "base/format.h"
#include "base/shape_text.h"
#include "device/dtype.h"

namespace zeroshard {

std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned) {
  const ParamSpec* largest = nullptr;
  const auto bytes_of = [](const ParamSpec& param) { return param.numel() * element_size(param.dtype); };
  for (const UnitLayout& unit : layouts)
    for (const ParamSpec& param : unit.params)
      if (!largest || bytes_of(param) > bytes_of(*largest)) largest = &param;
  std::string text = concat(": each rank needs ", planned.total(), " bytes for this model, activations aside");
  if (largest) {
    text += concat("; its largest parameter is '", largest->name(), "' ", shape_text(largest->shape), " of ",
                   bytes_of(*largest), " bytes");
  }
  return text + ". Shard it over more ranks, at stage 3, or train it in 16 bits: `zeroshard plan` tells what fits";
}

}  // namespace zeroshard
