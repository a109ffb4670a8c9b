// Small questions about lines.
#pragma once

#include <string_view>

namespace braid {

bool has_word(std::string_view text, std::string_view word);
std::string_view trimmed(std::string_view text);

bool is_kill_by_shell(std::string_view text);
bool is_of_the_scheduler(std::string_view text);
bool mentions_fp8(std::string_view text);
bool is_warning(std::string_view text);

}  // namespace braid
