#pragma once
#include <string>

namespace zeroshard {

// Returns a sentence to append to a permission error (". The umask is ...") if the umask takes permissions of this user
// away, because then this process cannot open files and directories that it has created itself. Returns "" for every
// usual umask.
std::string advice_on_umask();

}  // namespace zeroshard
