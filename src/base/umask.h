#pragma once
#include <string>

namespace zeroshard {

// Returns a sentence to append to a permission error (". The umask is ...") if the umask takes permissions of this user
// away. With such a umask, a process cannot use files and directories that it has created itself. Returns "" for every
// usual umask, and if the umask cannot be read.
std::string advice_on_umask();

}  // namespace zeroshard
