#pragma once
#include <string_view>

namespace zeroshard {

// On standard output of a host that was started from another one, before and after what its ranks write.
inline constexpr std::string_view kHostBegins = "zeroshard-host begins", kHostEnds = "zeroshard-host ends with code ";

}  // namespace zeroshard
