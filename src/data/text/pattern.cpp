#include "data/text/pattern.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

Regex read_pattern(const JsonPlace& place) {
  const JsonPlace literal = place["String"];
  if (!literal.is_null()) {
    if (literal.string().empty()) literal.refuse("should not be empty");
    return Regex::literal(literal.string());
  }
  const JsonPlace regex = place["Regex"];
  const std::string& written = regex.string();
  // Braid's own sets have such names.
  if (written.find("{@") != std::string::npos) regex.refuse("should not contain '{@'");
  try {
    return Regex(written);
  } catch (const DataError& e) {
    regex.refuse(fmt::format("is not usable: {}", e.what()));
  }
}

std::string with_replacements(const Regex& pattern, const std::string& text, const std::string& replacement) {
  if (text.empty()) return text;
  std::string result;
  std::size_t done = 0;
  RegexScan scan(pattern);
  scan.start(text);
  while (const auto match = scan.next()) {
    result.append(text, done, match->begin - done);
    result += replacement;
    done = match->end;
  }
  return result.append(text, done);
}

}  // namespace braid
