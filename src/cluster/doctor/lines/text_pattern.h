// Patterns of launchers' words and line prefixes, so that each is one row of a table.
#pragma once

#include <optional>
#include <string_view>

namespace braid {

// What a pattern caught; views into the text.
struct Caught {
  std::optional<int> rank, local_rank, code, signal;
  std::string_view host;
};

// Literal text, and
//   %r a rank, %l a rank of its node      %k "rank" in any case, maybe with "global", "world" or "mpi" before it
//   %c an exit code, maybe below 0        %s a signal's number, %S its name
//   %h a host's name, %w any such word    %n a number, %_ blanks or none, %= what stands between "rank" and its number
//   %~ between a code and its number      %* anything up to what follows
// The length of what matches at the beginning of text; nothing is caught when it does not match.
std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text, Caught& caught);

// The same anywhere in the text. The pattern begins with a literal.
bool match_inside(std::string_view pattern, std::string_view text, Caught& caught);

}  // namespace braid
