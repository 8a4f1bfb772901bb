#pragma once
#include <string>

namespace zeroshard {

// A sentence for errors of permissions: where the umask takes those of this user from what the process creates, files
// and directories of its own cannot be opened. Empty for every usual umask.
std::string advice_on_umask();

}  // namespace zeroshard
