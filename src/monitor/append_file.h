#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// A file to which whole records are appended. When append() returns, the record is in the file and survives the end of
// the process. A power failure can lose everything after the last sync(). All functions throw IoError if they fail.
class AppendFile {
 public:
  // Replaces the contents of `name` by `contents`. Whatever fails, the file then has either its old contents or
  // `contents`. The change is durable only after the caller has called directory.sync(). If directory.sync() fails, the
  // file already has `contents`.
  static AppendFile replace(Directory& directory, const std::string& name, std::string_view contents);
  // Creates the file `name` with `contents`. Throws if the file exists. If the contents cannot be written, removes the
  // file again.
  static AppendFile create(Directory& directory, const std::string& name, std::string_view contents);

  // Appends a record. If an error leaves only a part of the record in the file, for example because the disk is full,
  // cuts that part off and throws the error. If the cut fails, too, the next append() first tries to cut again.
  void append(std::string_view record);
  void sync();

 private:
  AppendFile(Io& io, OpenFd fd, std::string path) : io_(&io), fd_(std::move(fd)), path_(std::move(path)) {}
  void cut();

  Io* io_;
  OpenFd fd_;
  std::string path_;
  int64_t size_ = 0;   // bytes of the complete records
  bool torn_ = false;  // whether a partial record might follow the complete ones
};

}  // namespace zeroshard
