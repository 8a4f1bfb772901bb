#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file/io.h"

// The code here writes files so that each is complete or absent after a crash. A file is written under a temporary
// name, made durable and renamed. Then its directory is made durable. All functions throw IoError that names the path.
namespace zeroshard {

// An open directory. Names are relative to it. A name may have several components, but must not lead out of the
// directory. The functions refuse "..", absolute names, empty components and symbolic links on the way. Names that are
// created, renamed or deleted are durable only after sync() of the directory that has them. The Io decides who may read
// created files.
class Directory {
 public:
  // Opens `path`. If `path` is missing, creates it and its missing parents, durably.
  static Directory create(Io& io, const std::string& path);
  static Directory open(Io& io, const std::string& path);
  static std::optional<Directory> open_if_there(Io& io, const std::string& path);

  const std::string& path() const { return path_; }  // for messages
  std::string path_of(std::string_view name) const;  // for messages
  Io& io() const { return *io_; }
  int fd() const { return fd_.get(); }

  void create_directory(const std::string& name);  // throws if it exists
  Directory open_directory(const std::string& name) const;
  OpenFd create_file(const std::string& name);      // opened for writing; throws if it exists
  OpenFd open_file(const std::string& name) const;  // opened for reading; throws if it is no regular file

  std::vector<std::string> list() const;  // sorted names of files, directories and everything else
  bool exists(const std::string& name) const;
  int64_t file_size(const std::string& name) const;  // throws if it is no regular file

  void rename(const std::string& from, const std::string& to);  // replaces a file or an empty directory `to`
  void exchange(const std::string& one, const std::string& other);
  void remove(const std::string& name);  // deletes a file or a link itself; throws for a directory
  // Deletes `name` and everything below it, without following links. Does nothing if `name` does not exist. Throws if a
  // directory is nested 128 levels or more below `name`.
  void remove_tree(const std::string& name);
  void sync();

 private:
  Directory(Io& io, OpenFd fd, std::string path) : io_(&io), fd_(std::move(fd)), path_(std::move(path)) {}
  void check_name(std::string_view name, std::string_view operation) const;
  void check(int64_t result, std::string_view operation, std::string_view name) const;
  void remove_tree(const std::string& name, int depth);

  Io* io_;
  OpenFd fd_;
  std::string path_;
};

// Writes one new file from start to end. A second thread writes to the disk while the caller fills the next buffer. The
// writer bypasses the page cache if the file system allows. It has at most two buffers. Each has kBufferBytes, or fewer
// if `expected_bytes` is less.
class FileWriter {
 public:
  static constexpr int64_t kBufferBytes = int64_t{8} << 20;

  // Creates the file, which must not exist. Reserves `expected_bytes`, so that a full disk causes an error now. More or
  // fewer bytes may be appended; finish() cuts the file where they end.
  FileWriter(Directory& directory, const std::string& name, int64_t expected_bytes);
  // Waits for a running write and closes the file. If finish() was not called, the contents of the file are incomplete.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Appends a copy of the data, so its memory may change after the call. Also throws errors of earlier writes in the
  // background.
  void append(const void* data, int64_t bytes);
  // Works like append(), for data whose memory must not change before the end of finish() or of the destructor. The
  // data is written directly, without a copy, if it begins at a multiple of 4096 in memory and in the file. It is also
  // written directly if it begins in memory where the data of the previous call ends, and that data was written
  // directly. Other data is copied. If directly written data does not end at a multiple of 4096, its end is copied,
  // too.
  void append_stable(const void* data, int64_t bytes);
  // Writes the remaining data, makes the file durable (its name needs Directory::sync()) and closes it. After an error
  // of this function, append() or append_stable() the file is unusable, because the system might have dropped pages
  // that it could not write.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads at any position of a regular file. The file must not change while the object exists.
class FileReader {
 public:
  FileReader(const Directory& directory, const std::string& name);

  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Reads exactly `bytes` bytes. Throws IoError if the file ends too early. Any number of threads may call it at a
  // time.
  void read(int64_t offset, void* data, int64_t bytes) const;

 private:
  Io* io_;
  OpenFd fd_;
  std::string path_;
  int64_t size_ = 0;
};

// Returns a name for a temporary file in the directory of the file `name`. `name` must be a single component. The
// result, .tmp-NAME.HOST.PID-PLACE-RANDOM.N (see process_name()), is a name that no process uses or has used.
std::string temporary_name(std::string_view name);

// Returns a temporary name for a file that will be renamed to `name`. Throws IoError if `name` exists and is not a
// regular file, because the rename would replace a link, a device or a FIFO, and would fail for a directory.
std::string temporary_for(const Directory& directory, const std::string& name);

// Replaces or creates `name`, durably. After a crash the file has the old or the new contents, or is absent if it did
// not exist before.
void write_small_file(Directory& directory, const std::string& name, std::string_view contents);

// Returns the contents of the file. Throws IoError if they have more than `max_bytes`.
std::string read_small_file(const Directory& directory, const std::string& name, int64_t max_bytes);

}  // namespace zeroshard
