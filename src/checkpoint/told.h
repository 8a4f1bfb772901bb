#pragma once
#include "checkpoint/manifest.h"
#include "checkpoint/save.h"

// Tells the user about each save and each load in one line, with the size and the speed of all ranks together.
namespace zeroshard {

// Logs a line like "saved ROOT/TAG (step 5): 12.3 MB in 0.40 s, 30.8 MB/s", on the rank that knows the size. Never
// throws, because the checkpoint has already been committed.
void tell_saved(const SaveRequest& request, const Saved& saved);

void tell_loaded(const std::string& root, const std::string& tag, const Manifest& manifest, double seconds);

}  // namespace zeroshard
