#pragma once

namespace zeroshard {

// Converts the ranks of a group, which is a part of the world, to the numbers by which messages name them.
struct RankNumbers {
  int first = 0, stride = 1;
  int of(int rank) const { return first + rank * stride; }
};

}  // namespace zeroshard
