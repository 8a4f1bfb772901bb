#pragma once

namespace zeroshard {

// Opens /dev/null as each of the descriptors 0 to 2 that is closed, as in a daemon or after `>&-`. Otherwise the next
// files, pipes or sockets would get these numbers, and the program's output would be written into them. Must be called
// before the first file is opened.
void open_standard_streams();

}  // namespace zeroshard
