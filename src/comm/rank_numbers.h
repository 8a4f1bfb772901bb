#pragma once

namespace zeroshard {

// The numbers that messages give to the ranks of a group. The group is a part of a world.
struct RankNumbers {
  int first = 0, stride = 1;
  int of(int rank) const { return first + rank * stride; }
};

}  // namespace zeroshard
