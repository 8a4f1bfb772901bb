#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file/io.h"

// Files that are whole or absent after a crash. All functions throw IoError that names the path.
namespace zeroshard {

// An open directory. Names are relative to it and may have several components, but never lead out of it: "..", absolute
// names and symbolic links on the way are refused. Changes are durable only after sync(). The Io says who may read what
// is created.
class Directory {
 public:
  // Opens `path`; if it is missing, creates it with its parents, durably.
  static Directory create(Io& io, const std::string& path);
  static Directory open(Io& io, const std::string& path);
  static std::optional<Directory> open_if_there(Io& io, const std::string& path);

  const std::string& path() const { return path_; }  // for messages
  std::string path_of(std::string_view name) const;  // for messages
  Io& io() const { return *io_; }
  int fd() const { return fd_.get(); }

  void create_directory(const std::string& name);  // an error if it exists
  Directory open_directory(const std::string& name) const;
  OpenFd create_file(const std::string& name);      // for writing; an error if it exists
  OpenFd open_file(const std::string& name) const;  // for reading; only a regular file

  std::vector<std::string> list() const;  // sorted; files, directories and everything else
  bool exists(const std::string& name) const;
  int64_t file_size(const std::string& name) const;  // of a regular file

  void rename(const std::string& from, const std::string& to);  // replaces a file or an empty directory `to`
  void exchange(const std::string& one, const std::string& other);
  void remove(const std::string& name);  // a file; a link itself
  // Deletes `name` and everything below it; follows no link. Does nothing if it does not exist.
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

// Writes one new file from start to end. A second thread writes to the disk, past the page cache where the file system
// allows, while the caller fills the next buffer; it holds two buffers of kBufferBytes, less for a smaller file.
class FileWriter {
 public:
  static constexpr int64_t kBufferBytes = int64_t{8} << 20;

  // Reserves `expected_bytes`, so that a full disk is noticed here. The file still ends where append() stopped.
  FileWriter(Directory& directory, const std::string& name, int64_t expected_bytes);
  // Without finish(), closes the file and leaves it as it is.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Copies the data. Also throws errors from the background.
  void append(const void* data, int64_t bytes);
  // The same for memory that does not change before finish() or destruction. Stretches that begin at a multiple of 4096
  // in memory and in the file, and continue in memory from call to call, are written directly.
  void append_stable(const void* data, int64_t bytes);
  // Writes the rest, makes the file durable (its name needs Directory::sync()) and closes it. After an error of this
  // function or of append() the file is unusable: the system may have dropped pages that it could not write.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads at any position of a regular file that does not change meanwhile.
class FileReader {
 public:
  FileReader(const Directory& directory, const std::string& name);

  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Exactly `bytes` bytes, from any thread.
  void read(int64_t offset, void* data, int64_t bytes) const;

 private:
  Io* io_;
  OpenFd fd_;
  std::string path_;
  int64_t size_ = 0;
};

// A name beside `name` that no process uses or has used: .tmp-NAME.HOST.PID-RANDOM.N, see process_name().
std::string temporary_name(std::string_view name);

// The temporary name of a file that is about to be renamed to `name`. Throws IoError if `name` is there and is not a
// regular file: a rename would put a file in the place of a link, a device or a FIFO.
std::string temporary_for(const Directory& directory, const std::string& name);

// Replaces or creates `name`, durably: after a crash it has the old or the new contents.
void write_small_file(Directory& directory, const std::string& name, std::string_view contents);

// Throws IoError when the file has more than `max_bytes`.
std::string read_small_file(const Directory& directory, const std::string& name, int64_t max_bytes);

}  // namespace zeroshard
