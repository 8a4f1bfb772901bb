#pragma once
#include <optional>
#include <string>
#include <string_view>

// Converts numbers to text, in the same way in every locale.
namespace zeroshard {

// Returns the shortest decimal text that gives the same double, a JSON number; otherwise "NaN", "Infinity" or
// "-Infinity".
std::string exact_text(double value);
// Reads the result of exact_text() and other decimal numbers. Returns nothing for any other text.
std::optional<double> parse_number(std::string_view text);

std::string fixed_text(double value, int decimals);
std::string scientific_text(double value, int decimals);

// The following functions return rounded text for people:
std::string value_text(double value, int decimals = 4);  // 3.2101; 1.2e-07 and 3.4e+09 for very small and large values
std::string rate_text(double value);                     // 12.3k
std::string bytes_text(double bytes);                    // 3.21 GB; a GB is 10^9 bytes
std::string duration_text(double seconds);               // 45s, 1m20s, 2h05m, 3d04h; "?" if it is not a duration

}  // namespace zeroshard
