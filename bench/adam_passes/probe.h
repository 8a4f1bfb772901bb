#pragma once
#include "adam_passes/passes.h"

namespace zeroshard::bench {

// True when this processor and build have add_streams_tuned.
bool has_tuned_probe();
// The traffic of an AdamW step with the best-known loads and stores: prefetches, and bf16 written past the caches.
// `param` must be 32-byte aligned and numel a multiple of 16; the rest is left out.
void add_streams_tuned(const Arrays& arrays);

}  // namespace zeroshard::bench
