// What a terminal shows: lines that fit it, and colour. Files and pipes get neither.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace braid {

int columns_of(int fd);     // 80 where it cannot be known
bool shows_colour(int fd);  // a terminal that can, and NO_COLOR is not set

// Whether `fd` is a pipe whose reader has exited, or a closed terminal. Losing output there is not a failure; losing it
// to a full disk is.
bool has_no_reader(int fd);

// Wraps lines to the width of `fd` where it is a terminal, continuation lines indented; otherwise unchanged.
std::string fitted(std::string_view text, int fd);

// "braid: <message>", fitted, its first line in red where `fd` shows colour.
std::string error_text(std::string_view message, int fd);

// Broken behind `between` so that lines have at most `width` columns; all but the first have `indent` in front. Parts
// that are longer stay whole.
std::string folded(std::string_view text, std::size_t width, std::string_view indent, std::string_view between = " ");

}  // namespace braid
