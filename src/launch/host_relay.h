#pragma once

namespace zeroshard {

// Runs the order that the launcher of another host sends over `fd`, as `zeroshard run` with the order's arguments
// would. Passes on the signals that come over `fd` or to this process. When the connection ends, or is silent for
// longer than the order allows, kills the ranks of this host. Returns the exit code when no process of the job is left.
// Prints the first and the last line of standard output (host_relay_lines.h). Throws the errors of read_order(), and
// ValueError if the order's folder does not exist on this host.
int follow_order(int fd);

}  // namespace zeroshard
