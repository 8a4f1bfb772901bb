#pragma once

namespace zeroshard {

// CMake reads the project's version from this line.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace zeroshard
