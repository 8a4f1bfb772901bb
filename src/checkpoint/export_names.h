#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "file/durable.h"

// Names the files of a model in Hugging Face's layout: STEM.safetensors, or STEM-00001-of-00003.safetensors and so on
// with an index. Readers prefer the single file, and some read every file that is there.
namespace zeroshard {

std::string export_name(std::string_view stem);
// Name of one of `count` files; index from 0.
std::string export_name(std::string_view stem, size_t index, size_t count);
std::string export_index_name(std::string_view stem);

// Returns the files of this layout in a directory, the index first.
std::vector<std::string> list_exports(const Directory& directory, std::string_view stem);

// Deletes the files of an earlier export of the same stem, except the files of this export (`written`), because readers
// would read the earlier files instead, or in addition. Durable. Throws IoError.
void remove_earlier_export(Directory& directory, std::string_view stem, const std::set<std::string>& written);

}  // namespace zeroshard
