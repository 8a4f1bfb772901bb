#pragma once
#include "base/format.h"
#include "zeroshard/error.h"

// ZS_CHECK(condition, "message ", value...) throws ValueError if `condition` is false, for mistakes of a caller.
#define ZS_CHECK(condition, ...)                                                       \
  do {                                                                                 \
    if (!(condition)) throw ::zeroshard::ValueError(::zeroshard::concat(__VA_ARGS__)); \
  } while (false)

// ZS_ASSERT(condition, ...) throws InternalError if `condition` is false, for states that only a bug in zeroshard can
// cause.
#define ZS_ASSERT(condition, ...)                                                                                  \
  do {                                                                                                             \
    if (!(condition))                                                                                              \
      throw ::zeroshard::InternalError(                                                                            \
          ::zeroshard::concat(__FILE__, ":", __LINE__, ": " #condition " is false. " __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)
