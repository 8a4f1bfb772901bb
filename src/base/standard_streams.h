#pragma once

namespace zeroshard {

// Opens those of the descriptors 0 to 2 that are closed on /dev/null, as in a daemon or after `>&-`. Otherwise the next
// files, pipes or sockets get these numbers, and what is printed or logged is written into them. To be called before
// the first of them is opened.
void open_standard_streams();

}  // namespace zeroshard
