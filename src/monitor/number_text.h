#pragma once
#include <optional>
#include <string>
#include <string_view>

// Converts numbers to text, in the same way in every locale.
namespace zeroshard {

// Returns the shortest decimal text that reads back as the same double. This text is a JSON number. Returns "-0.0" for
// -0, and "NaN", "Infinity" or "-Infinity" if the value is not finite.
std::string exact_text(double value);
// Reads what exact_text() returns, and other decimal numbers. Returns nothing for any other text.
std::optional<double> parse_number(std::string_view text);

std::string fixed_text(double value, int decimals);
std::string scientific_text(double value, int decimals);

// These functions return rounded text for people.
std::string value_text(double value, int decimals = 4);  // 3.2101; very small and large values: 1.2e-07, 3.4e+09
std::string rate_text(double value);                     // 12.3k
std::string bytes_text(double bytes);                    // 3.21 GB; a GB is 10^9 bytes
std::string duration_text(double seconds);               // 45s, 1m20s, 2h05m, 3d04h; "?" for NaN, < 0 and >= 1e9

}  // namespace zeroshard
