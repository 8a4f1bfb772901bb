#pragma once

namespace zeroshard {

// Runs what another host's launcher orders over `fd`, as `zeroshard run` with these arguments would. Passes signals on
// that come over `fd`, and ends the job of this host when the connection is gone. Returns the exit code. Its standard
// output begins with a line that says so, and ends with one that has the code: see host_relay_lines.h. Throws
// ValueError as read_order() does, and when the folder of the order is not here.
int follow_order(int fd);

}  // namespace zeroshard
