#pragma once
#include <cstdint>
#include <span>

#include "layout/unit_layout.h"
#include "plan/plan_ledger.h"
#include "plan/state_rules.h"

// Plans the temporary memory of ranks on a GPU or another accelerator, in addition to what they hold during the whole
// run.
namespace zeroshard {

// Allocators of devices return multiples of this size.
inline constexpr int64_t kDeviceBlock = 512;

// Gradients of one bucket wait until they are packed in one launch, up to this many bytes. Only one bucket at a time
// has waiting gradients.
inline constexpr int64_t kWaitingBytes = 32 << 20;

// The number of elements of master weights that are compared with the parameters at a time, if users may have written
// to the parameters and the device has no kernel for the comparison.
inline constexpr int64_t kComparedNumel = 1 << 22;
// Returns the memory for comparing `numel` elements.
int64_t compare_bytes(int64_t numel);

// The number of elements whose 8-bit moments a device decodes at a time.
inline constexpr int64_t kDecodedNumel = 1 << 20;
// Returns the memory for `slots` decoded moments of `numel` elements.
int64_t decoded_bytes(int64_t numel, int slots);

// The size of the limbs of an exact sum of squares.
inline constexpr int64_t kSquaresBytes = 1024;

// Returns the most temporary memory that a step needs at any time. Waiting gradients and the sum of squares need such
// memory, but not at the same time. The result is for a device with zeroshard's kernels; other devices need more.
int64_t step_temporaries(std::span<const UnitLayout> units);

// Returns the memory in which a device decodes its 8-bit moments, at most.
int64_t coded_temporaries(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);

// The place of a unit's tensors before an engine is built from them.
struct UnitOrigin {
  int64_t device_bytes = 0;  // bytes on the engine's device, which are freed when the unit is made
  bool is_staged = true;     // true: rank 0 sends its values to all; false: each rank reads the values that it keeps
};
// Returns the origin if all parameters are on the device, each with its own memory, in the layout's dtype.
UnitOrigin origin_on_device(const UnitLayout& unit);

// Returns the memory needed while a unit is made: its largest group, whole and in fp32.
int64_t init_staging(const UnitLayout& unit);

// Returns the peak of device memory while an engine is built. Buffers for offloaded shards are allocated first. Then,
// unit by unit, its shards and states are made and its own tensors are freed. Rings and gradients come last.
// Activations and buffers of the model are not counted.
int64_t init_peak(std::span<const UnitLayout> units, const PlanReport& report, std::span<const UnitOrigin> origins);

}  // namespace zeroshard
