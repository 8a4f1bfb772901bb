#pragma once
#include "checkpoint/manifest.h"
#include "checkpoint/save.h"

// What a person is told of saves and loads: a line each, with size and speed, of all ranks together.
namespace zeroshard {

// Logs "saved ROOT/TAG (step 5): 12.3 MB in 0.40 s, 30.8 MB/s", on the rank that knows the size.
// Never fails: the checkpoint is there.
void tell_saved(const SaveRequest& request, const Saved& saved);

void tell_loaded(const std::string& root, const Manifest& manifest, double seconds);

}  // namespace zeroshard
