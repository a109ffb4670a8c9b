// Brace expansion in lists of shards: `part{00..03}.tar`, `{a,b}/{x,y}.tar`, as in bash.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

// A backslash makes the next character plain. ConfigError (with `where`) on unbalanced braces, and when more than
// a million strings would result.
std::vector<std::string> expand_braces(std::string_view pattern, const std::string& where);

}  // namespace braid
