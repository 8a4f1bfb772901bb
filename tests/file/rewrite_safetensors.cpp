// rewrite_safetensors FROM TO: reads every file of a directory as safetensors and prints a line of JSON about it: its
// header, or why it was refused. What was read is written to the directory TO under the same name, with a header of
// ours.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "file/durable.h"
#include "file/safetensors.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using nlohmann::json;

json rewrite(const Directory& from, Directory& to, const std::string& name) {
  const FileReader file(from, name);
  const SafetensorsHeader header = read_safetensors_header(file);
  std::string data(size_t(file.size() - header.data_begin), '\0');
  file.read(header.data_begin, data.data(), int64_t(data.size()));
  write_small_file(to, name, make_safetensors_header(header.entries, header.metadata, 4096) + data);
  json entries = json::object();
  for (const SafetensorsEntry& entry : header.entries)
    entries[entry.name] = {entry.dtype, entry.shape, entry.begin, entry.end};
  return {{"entries", entries}, {"metadata", header.metadata}};
}

int rewrite_all(const char* from_path, const char* to_path) {
  try {
    const Directory from = Directory::open(posix_io(), from_path);
    Directory to = Directory::open(posix_io(), to_path);
    for (const std::string& name : from.list()) {
      json line;
      try {
        line = rewrite(from, to, name);
      } catch (const ValueError& error) {
        line = {{"refused", error.what()}};
      }
      line["file"] = name;
      std::puts(line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace zeroshard

int main(int argc, char** argv) {
  return argc == 3 ? zeroshard::rewrite_all(argv[1], argv[2]) : 2;
}
