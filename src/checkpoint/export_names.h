#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "file/durable.h"

// Names the files of a model in Hugging Face's layout. The model is one file STEM.safetensors, or several files
// STEM-00001-of-00003.safetensors and so on with an index. Programs that read a model prefer the single file, and some
// read every file in the directory.
namespace zeroshard {

std::string export_name(std::string_view stem);
// Returns the name of file `index` of `count` files. `index` begins at 0, but the number in the name begins at 1.
std::string export_name(std::string_view stem, size_t index, size_t count);
std::string export_index_name(std::string_view stem);

// Returns the files of a directory that have names of this layout, the index first.
std::vector<std::string> list_exports(const Directory& directory, std::string_view stem);

// Deletes the files of an earlier export with the same stem, because programs that read the model would read them
// instead of the new files, or in addition. Keeps the new files (`written`). The deletion is durable on return. Throws
// IoError.
void remove_earlier_export(Directory& directory, std::string_view stem, const std::set<std::string>& written);

}  // namespace zeroshard
