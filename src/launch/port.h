#pragma once
#include "base/unique_fd.h"

namespace zeroshard {

// Holds a TCP port of 127.0.0.1 while a job runs.
//
// Note [Holding a port]: the socket is bound, with SO_REUSEADDR, and never listens. Linux then gives the port to no
// program that asks for any free one, so jobs that start together cannot collide. But a program that asks for this very
// port with SO_REUSEADDR, as rank 0's store does, may bind it and listen. If a second launcher asks for the same number
// explicitly, a name in the abstract socket namespace stops it; that namespace has the ports' own scope (the network
// namespace), and the name vanishes with its owner.
class PortReservation {
 public:
  // `port` 0: any free one. Throws ValueError when the port is taken.
  explicit PortReservation(int port);
  int port() const { return port_; }

 private:
  UniqueFd socket_, name_;
  int port_;
};

}  // namespace zeroshard
