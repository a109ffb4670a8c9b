// What a build without a library does: it refuses the tokenizers that need it.
#include "base/error.h"
#include "data/text/regex.h"
#include "data/text/tokenizer.h"
#include "data/text/unicode.h"

namespace braid {

#ifndef BRAID_HAS_ICU
void require_normal_forms(const std::string& needed_by) {
  throw ConfigError({fmt::format("{} needs ICU, which this build lacks", needed_by), "tokenizer",
                     "install libicu-dev and build again"});
}
std::string normal_form(std::string_view, NormalForm) {
  require_normal_forms("a normal form");
  return {};
}
#endif

#ifndef BRAID_HAS_PCRE2
struct Regex::Code {};
struct RegexScan::State {};

Regex::Regex(std::string_view) {
  throw ConfigError({"a pattern in a tokenizer needs PCRE2, which this build lacks", "tokenizer",
                     "install libpcre2-dev and build again"});
}
RegexScan::RegexScan(const Regex&) {}
void RegexScan::start(std::string_view) {}
std::optional<TextRange> RegexScan::next() { return std::nullopt; }
#endif

#ifndef BRAID_HAS_SENTENCEPIECE
std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view, const std::string& name) {
  throw ConfigError({"a sentencepiece model needs the sentencepiece library, which this build lacks", name,
                     "install libsentencepiece-dev and build again"});
}
#endif

}  // namespace braid
