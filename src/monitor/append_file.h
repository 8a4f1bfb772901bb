#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// A file that grows by whole records. A record is in the file when append() returns, and survives the end of the
// process; a power failure may take what came after the last sync(). Everything throws IoError.
class AppendFile {
 public:
  // `name` has its old contents or `contents`, whatever happens. The change is durable after directory.sync(), which is
  // left to the caller: when that fails, the file is in its place already.
  static AppendFile replace(Directory& directory, const std::string& name, std::string_view contents);
  // A file that is not there yet.
  static AppendFile create(Directory& directory, const std::string& name, std::string_view contents);

  // When it throws, the file is as it was: a part of the record that reached a full disk is cut off again.
  void append(std::string_view record);
  void sync();

 private:
  AppendFile(Io& io, OpenFd fd, std::string path) : io_(&io), fd_(std::move(fd)), path_(std::move(path)) {}
  void cut();

  Io* io_;
  OpenFd fd_;
  std::string path_;
  int64_t size_ = 0;   // of the whole records
  bool torn_ = false;  // there may be more behind them
};

}  // namespace zeroshard
