#include "file/durable.h"

#include <atomic>

#include "base/check.h"
#include "base/process_name.h"
#include "file/transfer.h"

namespace zeroshard {
FileReader::FileReader(const Directory& directory, const std::string& name)
    : io_(&directory.io()), fd_(directory.open_file(name)), path_(directory.path_of(name)) {
  FileStatus status;
  check_io(retry_interrupted([&] { return io_->fstat(fd_.get(), status); }), "look up", path_);
  size_ = status.size;
  io_->advise_sequential(fd_.get());  // the system can refuse this advice
}

void FileReader::read(int64_t offset, void* data, int64_t bytes) const {
  ZS_CHECK(offset >= 0 && bytes >= 0, "offset and bytes must not be negative, got ", offset, " and ", bytes);
  bool direct = false;
  read_at_least(*io_, fd_.get(), path_, data, bytes, bytes, offset, direct);
}

std::string temporary_name(std::string_view name) {
  static std::atomic<int64_t> next{0};
  return concat(".tmp-", name, ".", process_name(), ".", next.fetch_add(1));
}

std::string temporary_for(const Directory& directory, const std::string& name) {
  using Kind = FileStatus::Kind;
  FileStatus status;
  const std::string path = directory.path_of(name);
  const int found = retry_interrupted([&] { return directory.io().stat_at(directory.fd(), name, status); });
  if (found != -ENOENT) check_io(found, "look up", path);
  if (found == 0 && status.kind != Kind::kRegular)
    throw IoError(concat("cannot replace ", path, ": it is ",
                         status.kind == Kind::kDirectory ? "a directory" : "a link or a device, not a regular file",
                         ". Give another name",
                         status.kind == Kind::kOther ? ", or the one that a link leads to" : ""));
  return temporary_name(name);
}

void write_small_file(Directory& directory, const std::string& name, std::string_view contents) {
  const size_t slash = name.rfind('/');
  const size_t last = slash == name.npos ? 0 : slash + 1;
  if (last > 0) {  // sync() below must be that of the file's own directory
    Directory parent = directory.open_directory(name.substr(0, slash));
    return write_small_file(parent, name.substr(last), contents);
  }
  Io& io = directory.io();
  const std::string temporary = temporary_for(directory, name), path = directory.path_of(temporary);
  OpenFd fd = directory.create_file(temporary);
  try {
    write_all(io, fd.get(), path, contents.data(), int64_t(contents.size()), 0);
    check_io(retry_interrupted([&] { return io.fsync(fd.get()); }), "make durable", path);
    const int closed = fd.close();
    if (closed != -EINTR) check_io(closed, "close", path);
    directory.rename(temporary, name);
  } catch (...) {
    io.unlink_at(directory.fd(), temporary);  // a failure is ignored, because the first error is reported
    throw;
  }
  directory.sync();
}

std::string read_small_file(const Directory& directory, const std::string& name, int64_t max_bytes) {
  const FileReader file(directory, name);
  if (file.size() > max_bytes)
    throw IoError(
        concat("cannot read ", file.path(), ": it has ", file.size(), " bytes, at most ", max_bytes, " are expected"));
  std::string contents(size_t(file.size()), '\0');
  file.read(0, contents.data(), file.size());
  return contents;
}

}  // namespace zeroshard
