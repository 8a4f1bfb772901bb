#include "file/io.h"

#include <system_error>

#include "base/format.h"
#include "base/umask.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// Returns whether the operation, as error messages name it, only reads. If so, EACCES means that the user may not read,
// and not that the user may not write.
bool reads(std::string_view operation) {
  for (const std::string_view each : {"open", "open the directory", "read", "list", "look up", "map"})
    if (operation == each) return true;
  return false;
}

const char* advice(int error, std::string_view operation) {
  if ((error == EACCES || error == EPERM) && reads(operation))
    return ". This user may not read it: change its permissions, or those of a directory above it";
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return ". Free some space there, or choose another directory";
    case EROFS:
    case EACCES:
    case EPERM:
      return ". Choose a directory that this user may write to, or change its permissions";
    case EMFILE:
      return ". Raise the limit of open files (ulimit -n)";
    case EFBIG:
      return ". Raise the limit of file sizes (ulimit -f), or choose another file system";
    case ELOOP:
    case EXDEV:
      return ". Names must stay below their directory, and symbolic links there are not followed";
    case EIO:
      return ". The device may be failing: see the kernel's log";
    default:
      return "";
  }
}

}  // namespace

void throw_io_error(std::string_view operation, std::string_view path, int64_t result, std::string_view details) {
  const auto error = int(-result);
  throw IoError(concat("cannot ", operation, " ", path, ": ", std::generic_category().message(error),
                       details.empty() ? "" : "; ", details, advice(error, operation),
                       error == EACCES ? advice_on_umask() : std::string()));
}

}  // namespace zeroshard
