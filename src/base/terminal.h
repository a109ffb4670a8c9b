// Output for terminals: lines wrapped to the width, and colour. Files and pipes get neither.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace braid {

int columns_of(int fd);     // 80 where it is unknown
bool shows_colour(int fd);  // a terminal that supports it, and NO_COLOR is not set

// Whether `fd` is a pipe whose reader has exited, or a closed terminal. Losing output there is not a failure, unlike on
// a full disk.
bool has_no_reader(int fd);

// Wraps lines to the width of `fd` if it is a terminal, with continuation lines indented; otherwise returns them
// unchanged.
std::string fitted(std::string_view text, int fd);

// "braid: <message>", fitted, its first line in red where `fd` shows colour.
std::string error_text(std::string_view message, int fd);

// Breaks lines after `between` so that they have at most `width` columns; all but the first begin with `indent`. Longer
// pieces stay whole.
std::string folded(std::string_view text, std::size_t width, std::string_view indent, std::string_view between = " ");

}  // namespace braid
