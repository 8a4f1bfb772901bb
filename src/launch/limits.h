#pragma once

namespace zeroshard {

inline constexpr int kMaxRanksPerHost = 4096;

}  // namespace zeroshard
