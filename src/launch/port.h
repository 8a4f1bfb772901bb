#pragma once
#include "base/unique_fd.h"

namespace zeroshard {

// Holds a TCP port of 127.0.0.1 while a job runs.
//
// Note [Holding a port]: the socket is bound with SO_REUSEADDR and never listens. Then Linux does not choose the port
// for a program that asks for any free port, so jobs that start together cannot collide. A program that asks for this
// port with SO_REUSEADDR, as rank 0's store does, can still bind it and listen. A second launcher that asks for the
// same port number explicitly is stopped, because the first one owns a name for the port in the abstract socket
// namespace. This namespace has the same scope as ports (the network namespace), and the name vanishes with its owner.
class PortReservation {
 public:
  // Holds `port`, or any free port if `port` is 0. Throws ValueError if the port is taken or is no port number, and
  // Error if there is no free port.
  explicit PortReservation(int port);
  int port() const { return port_; }

 private:
  UniqueFd socket_, name_;
  int port_;
};

}  // namespace zeroshard
