#include "base/format.h"
#include "comm_c10d/device_group.h"
#include "zeroshard/error.h"

namespace zeroshard {

c10::intrusive_ptr<c10d::ProcessGroup> make_device_group(const c10::intrusive_ptr<c10d::Store>&, int, int world_size,
                                                         c10::Device device, int64_t) {
  throw ConfigError(concat("this build has no collectives for ", world_size, " ranks on ", device.str(),
                           ": give World process groups of your own, start one rank, or use the CPU"));
}

}  // namespace zeroshard
