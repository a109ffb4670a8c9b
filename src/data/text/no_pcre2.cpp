#include "base/error.h"
#include "data/text/regex.h"

namespace braid {

struct Regex::Code {};
struct RegexScan::State {};

Regex::Regex(std::string_view) {
  throw ConfigError({"a pattern in a tokenizer needs PCRE2, which this build lacks", "tokenizer",
                     "install libpcre2-dev and build again"});
}
Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex Regex::literal(std::string_view text) { return Regex(text); }
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

RegexScan::RegexScan(const Regex&) {}
RegexScan::~RegexScan() = default;
void RegexScan::start(std::string_view) {}
std::optional<TextRange> RegexScan::next() { return std::nullopt; }

}  // namespace braid
