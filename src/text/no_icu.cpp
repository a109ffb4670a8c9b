#include "base/error.h"
#include "text/unicode.h"

namespace braid {

void require_normal_forms(const std::string& needed_by) {
  throw ConfigError({fmt::format("{} needs ICU, which this build lacks", needed_by), "tokenizer",
                     "install libicu-dev and build again"});
}

std::string normal_form(std::string_view, NormalForm) { require_normal_forms("a normal form"); }

}  // namespace braid
