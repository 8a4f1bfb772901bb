#pragma once
#include <string>

namespace zeroshard {

// Returns a sentence for permission errors if the umask takes permissions of this user away, because then this process
// cannot open files and directories that it has created itself. Returns "" for every usual umask.
std::string advice_on_umask();

}  // namespace zeroshard
