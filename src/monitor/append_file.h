#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// A file that grows by whole records. When append() returns, the record is in the file and survives the end of the
// process; a power failure may lose everything after the last sync(). All functions throw IoError.
class AppendFile {
 public:
  // Afterwards `name` has its old contents or `contents`, whatever fails. The change is durable after directory.sync(),
  // which the caller must call: if that fails, the file is already in place.
  static AppendFile replace(Directory& directory, const std::string& name, std::string_view contents);
  // Creates a file that does not exist yet.
  static AppendFile create(Directory& directory, const std::string& name, std::string_view contents);

  // If it throws, the file is unchanged: a part of the record that reached a full disk is cut off again.
  void append(std::string_view record);
  void sync();

 private:
  AppendFile(Io& io, OpenFd fd, std::string path) : io_(&io), fd_(std::move(fd)), path_(std::move(path)) {}
  void cut();

  Io* io_;
  OpenFd fd_;
  std::string path_;
  int64_t size_ = 0;   // of the complete records
  bool torn_ = false;  // the file may continue after them
};

}  // namespace zeroshard
