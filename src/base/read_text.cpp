#include "base/read_text.h"

#include <fstream>
#include <iterator>

#include "base/format.h"
#include "zeroshard/error.h"

namespace zeroshard {

std::string read_text(const std::string& path, std::string_view hint) {
  try {
    std::ifstream file(path, std::ios::binary);
    if (file) return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {  // a directory, for one
  }
  throw IoError(concat("cannot read '", path, "'", hint));
}

}  // namespace zeroshard
