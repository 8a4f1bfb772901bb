#pragma once

namespace zeroshard {

// The numbers that messages give the ranks of a group which is part of a world.
struct RankNumbers {
  int first = 0, stride = 1;
  int of(int rank) const { return first + rank * stride; }
};

}  // namespace zeroshard
