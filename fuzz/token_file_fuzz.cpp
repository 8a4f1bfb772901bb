// Any bytes as a file of tokens: refused with ValueError, or every row of it can be made. The first byte chooses how it
// is read; a file of zeroshard's gets the right checksums, or no input would come past them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "data/token_format.h"
#include "file/hash.h"
#include "zeroshard/data.h"
#include "zeroshard/error.h"
#include "zeroshard/token_file.h"

namespace {

using zeroshard::DatasetOptions;

void require(bool condition) {
  if (!condition) std::abort();
}

void put_number(std::string& file, size_t offset, uint64_t number) {
  std::memcpy(file.data() + offset, &number, sizeof(number));
}

// Wherever the counts of the foot say that checksums are, if that is in the file.
void correct_checksums(std::string& file) {
  using namespace zeroshard;
  const auto size = int64_t(file.size());
  if (!file.starts_with(kTokenMagic) || size < kTokenHeadBytes + kTokenFootBytes) return;
  const size_t at_foot = size_t(size - kTokenFootBytes);
  TokenFoot foot;
  foot.tokens = load<int64_t>(file.data() + at_foot);
  foot.documents = load<int64_t>(file.data() + at_foot + 8);
  foot.id_bytes = load<int32_t>(file.data() + at_foot + 48);
  foot.masked = load<uint32_t>(file.data() + at_foot + 52) == 1;
  const bool possible = foot.tokens >= 0 && foot.tokens <= size && foot.documents >= 0 && foot.documents <= size &&
                        (foot.id_bytes == 2 || foot.id_bytes == 4);
  const TokenSections at = possible ? token_sections(foot) : TokenSections();
  if (possible && at.file_bytes == size) {
    for (int64_t piece = 0; piece < at.pieces; ++piece) {
      const int64_t begin = piece * kPieceBytes, bytes = std::min(kPieceBytes, at.body_end - begin);
      put_number(file, size_t(at.table + piece * 8), hash_bytes(file.data() + begin, bytes));
    }
    put_number(file, at_foot + 104, hash_bytes(file.data() + at.table, at.foot - at.table));
  }
  put_number(file, at_foot + 112, hash_bytes(file.data() + at_foot, 112));
}

// A file in memory, named by its descriptor.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& contents) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::write(fd_, contents.data(), contents.size()) == ssize_t(contents.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void read_rows(const std::string& path, unsigned choice) {
  DatasetOptions options;
  options.length = 1 + int64_t(choice >> 4 & 15);
  options.packing = DatasetOptions::Packing(choice % 3);
  options.shuffle = (choice & 4) != 0;
  options.validation_share = (choice & 8) != 0 ? 0.25 : 0;
  if ((choice & 1) != 0) options.eos = 0;
  zeroshard::Dataset dataset({path}, options);
  const int64_t rows = dataset.rows_in_epoch(0);
  int64_t tokens = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const zeroshard::TokenRow made = dataset.row(row);
    require(int64_t(made.ids.size()) == options.length && made.targets.size() == made.ids.size());
    for (size_t i = 0; i < made.ids.size(); ++i) {
      require(made.ids[i] >= 0 && (made.targets[i] >= 0 || made.targets[i] == -100));
      tokens += made.documents[i] != 0;
    }
  }
  require(tokens == dataset.tokens());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string contents(reinterpret_cast<const char*>(data) + 1, size - 1);
  correct_checksums(contents);
  try {
    const MemoryFile file(contents);
    for (const std::string& line : zeroshard::TokenFile(file.path()).verify()) require(line.empty());
    read_rows(file.path(), data[0]);
  } catch (const zeroshard::ValueError&) {
  }
  return 0;
}
