#pragma once
#include "checkpoint/manifest.h"
#include "checkpoint/save.h"

// Reports saves and loads to the user: one line each, with size and speed, of all ranks together.
namespace zeroshard {

// Logs "saved ROOT/TAG (step 5): 12.3 MB in 0.40 s, 30.8 MB/s", on the rank that knows the size. Never fails, because
// the checkpoint has already been committed.
void tell_saved(const SaveRequest& request, const Saved& saved);

void tell_loaded(const std::string& root, const Manifest& manifest, double seconds);

}  // namespace zeroshard
