#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "file/durable.h"

// The files of a model as Hugging Face keeps it: STEM.safetensors, or STEM-00001-of-00003.safetensors and so on with an
// index. Readers prefer the single file, and some take every file there is.
namespace zeroshard {

std::string export_name(std::string_view stem);
std::string export_name(std::string_view stem, size_t index, size_t count);  // of one of several; index from 0
std::string export_index_name(std::string_view stem);

// Lists such files of a directory, the index first.
std::vector<std::string> list_exports(const Directory& directory, std::string_view stem);

// Deletes what an earlier export of the same stem has left, except the files of this one: readers would take it
// instead, or as well. Durable. Throws IoError.
void remove_earlier_export(Directory& directory, std::string_view stem, const std::set<std::string>& written);

}  // namespace zeroshard
