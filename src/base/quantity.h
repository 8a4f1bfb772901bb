#pragma once
#include <optional>
#include <string_view>

// Reads numbers with units, as people write them.
namespace zeroshard {

// Returns the bytes of a text like "24GB", "24e9" or "22.5 GiB". A number without a unit means bytes. Returns nothing
// for another text, or for less than 1 byte.
std::optional<double> bytes_in(std::string_view text);
// Returns the bits of a text like "10Gbit" or "1 Gbit/s". Returns nothing for another text, such as a number without a
// unit.
std::optional<double> bits_in(std::string_view text);
// Returns the number in a text like "7.5e9", "7.5B" or "350M". Returns nothing for another text.
std::optional<double> count_in(std::string_view text);

}  // namespace zeroshard
