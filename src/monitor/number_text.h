#pragma once
#include <optional>
#include <string>
#include <string_view>

// Numbers as text, the same in every locale.
namespace zeroshard {

// The shortest decimal text of the same double, a JSON number; otherwise "NaN", "Infinity" or "-Infinity".
std::string exact_text(double value);
// Reads the result of exact_text(), and other decimal numbers; nothing for any other text.
std::optional<double> parse_number(std::string_view text);

std::string fixed_text(double value, int decimals);
std::string scientific_text(double value, int decimals);

// For people:
std::string value_text(double value, int decimals = 4);  // 3.2101; 1.2e-07 and 3.4e+09 where those say more
std::string rate_text(double value);                     // 12.3k
std::string bytes_text(double bytes);                    // 3.21 GB, of 10^9
std::string duration_text(double seconds);               // 45s, 1m20s, 2h05m, 3d04h; "?" for what is no duration

}  // namespace zeroshard
