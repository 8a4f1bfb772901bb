#pragma once
#include <optional>
#include <string_view>

// Numbers with units, as people write them.
namespace zeroshard {

// "24GB", "24e9", "22.5 GiB": bytes, of at least 1. Nothing for other text.
std::optional<double> bytes_in(std::string_view text);
// "7.5e9", "7.5B", "350M". Nothing for other text.
std::optional<double> count_in(std::string_view text);

}  // namespace zeroshard
