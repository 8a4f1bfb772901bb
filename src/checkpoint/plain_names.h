#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace zeroshard {

// Returns the name of a parameter or buffer without the parts that torch.compile adds: "layers.0.weight" for
// "_orig_mod.layers.0._orig_mod.weight".
std::string plain_name(std::string_view name);

// Makes the names and aliases of all tensors plain, except in state that the user saves. A name stays if its plain name
// would also be a name of another tensor of the same kind.
void make_names_plain(std::vector<TensorRecord>& tensors);

}  // namespace zeroshard
