#include "comm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/format.h"
#include "zeroshard/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace zeroshard {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

[[noreturn]] void fail(const std::string& what) {
  const int error = errno;
  throw CommError(concat(what, ": ", std::strerror(error)));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Fd create_shared(size_t bytes) {
  Fd fd(::memfd_create("zeroshard", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
  if (fd.get() < 0 && errno == EINVAL) fd = Fd(::memfd_create("zeroshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    fail(concat("cannot size shared memory to ", bytes, " bytes"));
  // The size is sealed, because SIGBUS would kill the readers of a file that shrinks.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail("cannot seal shared memory");
  return fd;
}

uint64_t inode_of(const Fd& fd) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) fail("fstat of shared memory");
  return status.st_ino;
}

Fd open_peer(int32_t pid, int fd, uint64_t inode) {
  const std::string path = concat("/proc/", pid, "/fd/", fd);
  Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened.get() < 0) fail("cannot open the shared memory of process " + std::to_string(pid) + " at " + path);
  if (inode_of(opened) != inode) throw CommError(concat(path, " is not the shared memory that was announced"));
  return opened;
}

Mapping map_shared(const Fd& fd, size_t bytes, bool writable) {
  if (bytes == 0) return {};
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) fail(concat("cannot map ", bytes, " bytes of shared memory"));
  // The kernel can refuse this advice, which does no harm.
  if (bytes >= kHugePageBytes) ::madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

}  // namespace zeroshard
