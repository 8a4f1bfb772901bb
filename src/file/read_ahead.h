#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "file/background.h"
#include "file/direct_buffer.h"
#include "file/durable.h"

namespace zeroshard {

// Reads ranges of files one after another. While the caller works on one range, a second thread reads the next. The
// page cache is bypassed if the file system allows. The object has at most two buffers, each large enough for the
// longest range, and only one open file. So the caller should pass all ranges of a file in a row.
class ReadAhead {
 public:
  struct Stretch {
    std::string_view file;          // a name in the directory
    int64_t offset = 0, bytes = 0;  // bytes > 0
  };
  // `directory` and the names in `stretches` must outlive the object.
  ReadAhead(const Directory& directory, std::vector<Stretch> stretches);

  // Returns the bytes of the next range, which are valid until the next call. Must be called at most once for each
  // range. Throws IoError if the range cannot be read completely. Further calls can still read the later ranges then.
  std::span<const std::byte> next();

 private:
  struct Slot {
    DirectBuffer memory;
    std::span<const std::byte> bytes;
    std::exception_ptr error;
  };
  void fetch(size_t index) noexcept;
  void read(const Stretch& stretch, Slot& slot);
  void open(std::string_view name);

  const Directory& directory_;
  std::vector<Stretch> stretches_;
  int64_t capacity_ = 0;  // size of each buffer
  std::array<Slot, 2> slots_;
  size_t taken_ = 0;
  // The thread uses the following members while it has a job.
  std::string open_name_;
  OpenFd fd_;
  bool direct_ = false;
  Background background_;  // the last member, because its thread must end before the members that the thread uses
};

}  // namespace zeroshard
