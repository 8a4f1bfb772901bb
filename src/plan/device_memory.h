#pragma once
#include <cstdint>
#include <span>

#include "layout/unit_layout.h"
#include "plan/plan_ledger.h"
#include "plan/state_rules.h"

// What ranks on a GPU or the like need for a while, beside what they hold for the whole run.
namespace zeroshard {

// Allocators of devices give whole multiples of this.
inline constexpr int64_t kDeviceBlock = 512;

// Gradients of one bucket wait until they are packed in one launch, up to this many bytes. Only one bucket has such.
inline constexpr int64_t kWaitingBytes = 32 << 20;

// Elements of master weights that are compared with the parameters at a time, where users may have written to these and
// the device has no kernel for that.
inline constexpr int64_t kComparedNumel = 1 << 22;
// Memory for comparing `numel` elements.
int64_t compare_bytes(int64_t numel);

// The sum of squares, exact: its limbs.
inline constexpr int64_t kSquaresBytes = 1024;

// The most that a step needs for a while: gradients that wait, or the squares. They follow one another. Of a device
// with kernels of zeroshard's; without them there is more.
int64_t step_temporaries(std::span<const UnitLayout> units);

// Where a unit's tensors are before an engine is built from them.
struct UnitOrigin {
  int64_t device_bytes = 0;  // on the engine's device: freed when the unit is made
  bool is_staged = true;     // rank 0's values are sent to all; otherwise each rank reads those that it keeps
};
// All parameters on the device, each in memory of its own, in the layout's dtype.
UnitOrigin origin_on_device(const UnitLayout& unit);

// While a unit is made: its largest group, whole and in fp32.
int64_t init_staging(const UnitLayout& unit);

// The most that lies on a device while an engine is built. Unit after unit, its shards and states are made, then its
// own tensors are freed; buffers for shards that leave come first, rings and gradients last. Activations and buffers of
// the model are not counted.
int64_t init_peak(std::span<const UnitLayout> units, const PlanReport& report, std::span<const UnitOrigin> origins);

}  // namespace zeroshard
