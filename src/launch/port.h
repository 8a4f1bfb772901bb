#pragma once
#include "base/unique_fd.h"

namespace zeroshard {

// Holds a TCP port of 127.0.0.1 while a job runs.
//
// Note [Holding a port]: the socket is bound, with SO_REUSEADDR, and never listens. Linux then never chooses the port
// for a program that asks for any free port, so jobs that start together cannot collide. A program that asks for this
// port with SO_REUSEADDR, as rank 0's store does, may still bind it and listen. A second launcher that asks for the
// same port number explicitly is stopped by a name in the abstract socket namespace. This namespace has the same scope
// as ports (the network namespace), and the name vanishes with its owner.
class PortReservation {
 public:
  // `port` 0 means any free port. Throws ValueError if the port is taken.
  explicit PortReservation(int port);
  int port() const { return port_; }

 private:
  UniqueFd socket_, name_;
  int port_;
};

}  // namespace zeroshard
