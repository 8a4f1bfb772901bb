#include "monitor/append_file.h"

#include "file/transfer.h"
#include "zeroshard/error.h"

namespace zeroshard {

AppendFile AppendFile::replace(Directory& directory, const std::string& name, std::string_view contents) {
  const std::string temporary = temporary_for(directory, name);
  AppendFile file = create(directory, temporary, contents);
  try {
    file.sync();
    directory.rename(temporary, name);
  } catch (...) {
    directory.io().unlink_at(directory.fd(), temporary);  // a failure is ignored, because the first error is reported
    throw;
  }
  file.path_ = directory.path_of(name);
  return file;
}

AppendFile AppendFile::create(Directory& directory, const std::string& name, std::string_view contents) {
  AppendFile file(directory.io(), directory.create_file(name), directory.path_of(name));
  try {
    file.append(contents);
  } catch (...) {
    directory.io().unlink_at(directory.fd(), name);
    throw;
  }
  return file;
}

void AppendFile::append(std::string_view record) {
  if (torn_) cut();
  try {
    write_all(*io_, fd_.get(), path_, record.data(), int64_t(record.size()), size_);
  } catch (...) {
    torn_ = true;
    try {
      cut();
    } catch (const IoError&) {  // the next append() tries again, and readers ignore an unfinished record
    }
    throw;
  }
  size_ += int64_t(record.size());
}

void AppendFile::cut() {
  check_io(retry_interrupted([&] { return io_->ftruncate(fd_.get(), size_); }), "shorten", path_);
  torn_ = false;
}

void AppendFile::sync() {
  check_io(retry_interrupted([&] { return io_->fsync(fd_.get()); }), "make durable", path_);
}

}  // namespace zeroshard
