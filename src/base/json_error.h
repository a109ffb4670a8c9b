// Messages of the JSON parser, for people.
#pragma once

#include <string>
#include <string_view>

namespace braid {

// "[json.exception.parse_error.101] parse error at line 2, column 1: syntax error while parsing value - invalid
// literal" becomes "line 2, column 1: invalid literal"; long ones are cut.
std::string json_error(std::string_view what);

}  // namespace braid
