#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/format.h"
#include "file/durable.h"
#include "support/faulty_io.h"
#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard::testing {

// A new directory of its own, deleted with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "zeroshard-file-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string contents(file ? size_t(file.tellg()) : 0, '\0');
  file.seekg(0).read(contents.data(), std::streamsize(contents.size()));
  return contents;
}

inline void put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

// Damage that a checksum finds when all before it has been read.
inline void change_last_byte(const std::string& path) {
  std::string contents = contents_of(path);
  ASSERT_FALSE(contents.empty()) << path;
  contents.back() = char(contents.back() ^ 1);
  put(path, contents);
}

inline std::string random_bytes(Random& random, int64_t bytes) {
  std::string text(size_t(bytes), '\0');
  for (size_t i = 0; i < text.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(text.data() + i, &value, std::min<size_t>(8, text.size() - i));
  }
  return text;
}

// What `call` throws, as text; empty when it throws nothing, or something else.
template <typename Exception, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
  return {};
}

}  // namespace zeroshard::testing
