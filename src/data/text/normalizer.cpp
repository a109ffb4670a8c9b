#include "data/text/normalizer.h"

#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/pattern.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

std::string stripped(std::string_view text, bool left, bool right) {
  std::size_t begin = text.size(), end = 0;  // of what is kept
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t at = text.size() - rest.size();
    if (is_white_space(*take_character(rest))) continue;
    begin = std::min(begin, at);
    end = text.size() - rest.size();
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(begin < end ? text.substr(begin, end - begin) : "");
}

std::string lowercase(std::string_view text) {
  std::string result;
  while (!text.empty()) append_lowercase(result, *take_character(text));
  return result;
}

}  // namespace

Normalizer::Normalizer(const JsonPlace& place) {
  if (!place.is_null()) add(place);
}

void Normalizer::add(const JsonPlace& place) {
  if (place.type() != "Sequence") {
    steps_.push_back(step_of(place));
    return;
  }
  for (const JsonPlace& part : place["normalizers"].elements()) add(part);
}

Normalizer::Step Normalizer::step_of(const JsonPlace& place) const {
  const std::string type = place.type();
  static const std::vector<std::string> forms = {"NFC", "NFD", "NFKC", "NFKD"};
  if (contains(forms, type)) require_normal_forms(fmt::format("the normalizer {}", type));
  for (std::size_t i = 0; i < forms.size(); ++i)
    if (type == forms[i])
      return [form = static_cast<NormalForm>(i)](const std::string& text) { return normal_form(text, form); };
  if (type == "Lowercase") return lowercase;
  if (type == "Strip")
    return [left = place["strip_left"].boolean_or(true), right = place["strip_right"].boolean_or(true)](
               const std::string& text) { return stripped(text, left, right); };
  if (type == "Prepend")
    return
        [prefix = place["prepend"].string()](const std::string& text) { return text.empty() ? text : prefix + text; };
  const auto replace = [](Regex pattern, const std::string& content) -> Step {
    return [shared = std::make_shared<const Regex>(std::move(pattern)), content](const std::string& text) {
      return with_replacements(*shared, text, content);
    };
  };
  if (type == "StripAccents") return replace(Regex(R"(\p{@mark}+)"), "");
  if (type == "Replace") return replace(read_pattern(place["pattern"]), place["content"].string());
  place.refuse(
      fmt::format("has type {}; known normalizers: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                  "StripAccents, Prepend, Replace",
                  in_quotes(type)));
}

std::string Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) text = step(std::move(text));
  return text;
}

}  // namespace braid
