#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace zeroshard {

// Returns the name of a parameter or buffer without the parts that torch.compile adds: "layers.0.weight" for
// "_orig_mod.layers.0._orig_mod.weight".
std::string plain_name(std::string_view name);

// Makes the names of all tensors plain, except in state that the user saves. Tensors of one kind that would get the
// same plain name keep their names.
void make_names_plain(std::vector<TensorRecord>& tensors);

}  // namespace zeroshard
