#include "base/error.h"
#include "text/unicode.h"

namespace braid {
namespace {

[[noreturn]] void throw_no_icu(const std::string& needed_by) {
  throw ConfigError({fmt::format("{} needs ICU, which this build lacks", needed_by), "tokenizer",
                     "install libicu-dev and build again"});
}

}  // namespace

void require_unicode_data(const std::string& needed_by) { throw_no_icu(needed_by); }
std::string normal_form(std::string_view, NormalForm) { throw_no_icu("a normal form"); }
bool is_number(std::uint32_t) { throw_no_icu("a class of characters"); }
bool is_punctuation(std::uint32_t) { throw_no_icu("a class of characters"); }
bool is_combining_mark(std::uint32_t) { throw_no_icu("a class of characters"); }
bool is_word_character(std::uint32_t) { throw_no_icu("a class of characters"); }
void append_lowercase(std::string&, std::uint32_t) { throw_no_icu("lower case"); }

}  // namespace braid
