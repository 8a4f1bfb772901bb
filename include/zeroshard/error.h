#pragma once
#include <stdexcept>
#include <string>

// The exceptions that zeroshard throws. All derive from Error. The Python front maps each to a class of the same name.
namespace zeroshard {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wrong argument: the message has the value and what is allowed.
class ValueError : public Error {
 public:
  using Error::Error;
};

// A wrong configuration: the message has the JSON path, the value and what is allowed.
class ConfigError : public ValueError {
 public:
  using ValueError::ValueError;
};

// A collective failed, timed out or was called differently by ranks. The communicator cannot be used afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

// An operation on a file failed: the message has the path, the operation, the system's reason and what to do.
class IoError : public Error {
 public:
  using Error::Error;
};

// A call that is not allowed in the current state, such as reading a sharded parameter.
class StateError : public Error {
 public:
  using Error::Error;
};

// A broken invariant of zeroshard itself: a bug, not a user's mistake.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace zeroshard
