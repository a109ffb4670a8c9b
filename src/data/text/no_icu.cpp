#include "base/error.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

[[noreturn]] void throw_no_icu(const std::string& needed_by) {
  throw ConfigError({fmt::format("{} needs ICU, which this build lacks", needed_by), "tokenizer",
                     "install libicu-dev and build again"});
}

}  // namespace

void require_normal_forms(const std::string& needed_by) { throw_no_icu(needed_by); }
std::string normal_form(std::string_view, NormalForm) { throw_no_icu("a normal form"); }

}  // namespace braid
