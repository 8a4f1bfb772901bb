#pragma once
#include <cstdint>
#include <span>

#include "layout/unit_layout.h"
#include "plan/buffer_sizes.h"
#include "plan/plan_ledger.h"

// Plans the temporary memory of ranks on a GPU or another accelerator. Temporary memory comes in addition to what the
// ranks have during the whole run.
namespace zeroshard {

// Device allocators return memory in multiples of this many bytes.
inline constexpr int64_t kDeviceBlock = 512;

// The most bytes of gradients that wait, so that one kernel packs them together. Only one bucket at a time has waiting
// gradients.
inline constexpr int64_t kWaitingBytes = 32 << 20;

// The number of master weights that are compared with their parameters at a time. The comparison finds out whether
// users have written to the parameters. It needs temporary memory only if the device has no kernel for it.
inline constexpr int64_t kComparedNumel = 1 << 22;
// Returns the bytes of temporary memory that a comparison of `numel` elements needs without such a kernel.
int64_t compare_bytes(int64_t numel);

// The number of elements whose 8-bit moments a device decodes at a time.
inline constexpr int64_t kDecodedNumel = 1 << 20;
// Returns the bytes of the decoded moments of `numel` elements, for `slots` moments each.
int64_t decoded_bytes(int64_t numel, int slots);

// The bytes of the limbs of an exact sum of squares.
inline constexpr int64_t kSquaresBytes = 1024;

// Returns the most temporary bytes that a step needs at any time. Waiting gradients need such memory during backward,
// and the sum of squares needs it afterwards. The result is for a device that has zeroshard's kernels. Other devices
// need more.
int64_t step_temporaries(std::span<const UnitLayout> units);

// Returns the most temporary bytes that a device needs to decode 8-bit moments.
int64_t coded_temporaries(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);

// Says where a unit's tensors are before an engine is made of them.
struct UnitOrigin {
  int64_t device_bytes = 0;  // bytes on the engine's device, which are freed when the unit is made
  bool is_staged = true;  // true: rank 0 sends its values to all ranks; false: each rank reads the values that it keeps
};
// Returns the origin of a unit whose parameters are all on the device, each with memory of its own, in the layout's
// dtype.
UnitOrigin origin_on_device(const UnitLayout& unit);

// Returns the most temporary bytes that making a unit needs. These are the bytes of the unit's largest group. The group
// is counted whole, in fp32 if it is trained, and in its own dtype if it is frozen.
int64_t init_staging(const UnitLayout& unit);

// Returns the peak of device memory while an engine is made, including the tensors from which the units are made
// (`origins`). Buffers for offloaded shards and for 8-bit codes of parameters are allocated first. Then, for one unit
// after another, the unit's shards and states are made, and the tensors from which it is made are freed. Rings and
// gradients come last. Activations and buffers of the model are not counted.
int64_t init_peak(std::span<const UnitLayout> units, const PlanReport& report, std::span<const UnitOrigin> origins);

}  // namespace zeroshard
