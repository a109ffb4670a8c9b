#include "data/text/tokenizer_steps.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

std::string lowercase(std::string_view text) {
  std::string result;
  while (!text.empty()) append_lowercase(result, *take_character(text));
  return result;
}

void append_special(const JsonPlace& processor, const JsonPlace& item, std::vector<int>& out) {
  const std::string& name = item["id"].string();
  const JsonPlace ids = processor["special_tokens"][name.c_str()]["ids"];
  for (const JsonPlace& id : ids.elements()) out.push_back(static_cast<int>(id.integer(0, 1 << 30)));
}

SpecialFrame read_template(const JsonPlace& place) {
  SpecialFrame frame;
  bool seen_text = false;
  const JsonPlace single = place["single"];
  for (const JsonPlace& item : single.elements()) {
    if (!item["SpecialToken"].is_null()) {
      append_special(place, item["SpecialToken"], seen_text ? frame.after : frame.before);
      continue;
    }
    if (seen_text || item["Sequence"]["id"].string() != "A") item.refuse("should be the text (A), once");
    seen_text = true;
  }
  if (!seen_text) single.refuse("should contain the text (A)");
  return frame;
}

using Tokens = std::vector<std::string>;

Tokens from_byte_level(const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens)
    if (!append_byte_level_bytes(bytes, token)) bytes += token;
  return {with_valid_utf8(bytes)};
}

Tokens fused(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return {text};
}

// 0x41 for "<0x41>".
std::optional<char> byte_of(const std::string& token) {
  unsigned byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

Tokens with_bytes_joined(const Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (is_utf8(bytes) && !bytes.empty()) result.push_back(bytes);
    if (!is_utf8(bytes)) result.insert(result.end(), bytes.size(), "\ufffd");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    result.push_back(token);
  }
  flush();
  return result;
}

// Removes up to `start` characters equal to `content` from the front, and up to `stop` from the end.
std::string without_content(std::string_view token, const std::string& content, std::int64_t start, std::int64_t stop) {
  for (; start > 0 && token.starts_with(content); --start) token.remove_prefix(content.size());
  for (; stop > 0 && token.ends_with(content); --stop) token.remove_suffix(content.size());
  return std::string(token);
}

Tokens from_metaspace(Tokens tokens, const std::string& replacement, bool drop_first) {
  bool is_first = true;
  for (std::string& token : tokens) {
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      if (std::string_view(token).substr(at).starts_with(replacement)) {
        if (!is_first || !drop_first) text += ' ';
        at += replacement.size();
      } else {
        text += token[at++];
      }
    }
    token = text;
    is_first = false;
  }
  return tokens;
}

}  // namespace

void for_each_step(const JsonPlace& place, const char* parts, const std::function<void(const JsonPlace&)>& visit) {
  if (place.type() != "Sequence") return visit(place);
  for (const JsonPlace& part : place[parts].elements()) for_each_step(part, parts, visit);
}

std::string read_replacement(const JsonPlace& metaspace) {
  const JsonPlace place = metaspace["replacement"];
  std::string replacement = place.string_or("\u2581");
  if (replacement.empty()) place.refuse("should not be empty");
  return replacement;
}

std::string read_prepend_scheme(const JsonPlace& metaspace) {
  const JsonPlace place = metaspace["prepend_scheme"];
  const std::string scheme =
      place.string_or(metaspace["add_prefix_space"].boolean_or(true) ? "always" : "never");  // its older name
  if (scheme != "always" && scheme != "first" && scheme != "never") place.expected("always, first or never");
  return scheme;
}

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

Normalizer::Normalizer(const JsonPlace& place) {
  if (place.is_null()) return;
  for_each_step(place, "normalizers", [&](const JsonPlace& step) { steps_.push_back(step_of(step)); });
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
               const std::string& text) { return std::string(without_white_space(text, left, right)); };
  if (type == "Prepend")
    return
        [prefix = place["prepend"].string()](const std::string& text) { return text.empty() ? text : prefix + text; };
  const auto replace = [](const Regex& pattern, const std::string& content) -> Step {
    return [=](const std::string& text) { return with_replacements(pattern, text, content); };
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

SpecialFrame read_post_processor(const JsonPlace& place) {
  if (place.is_null()) return {};
  const std::string type = place.type();
  if (type == "ByteLevel") return {};  // it only changes offsets
  if (type == "TemplateProcessing") return read_template(place);
  if (type != "Sequence")
    place.refuse(
        fmt::format("has type {}; known post-processors: Sequence, TemplateProcessing, ByteLevel", in_quotes(type)));
  SpecialFrame frame;
  for (const JsonPlace& part : place["processors"].elements()) {
    const SpecialFrame outer = read_post_processor(part);
    frame.before.insert(frame.before.begin(), outer.before.begin(), outer.before.end());
    frame.after.insert(frame.after.end(), outer.after.begin(), outer.after.end());
  }
  return frame;
}

Decoder::Decoder(const JsonPlace& place) : separator_(place.is_null() ? " " : "") {
  if (place.is_null()) return;
  for_each_step(place, "decoders", [&](const JsonPlace& step) {
    steps_.push_back(step_of(step));
    has_byte_level_ |= step.type() == "ByteLevel";
  });
}

Decoder::Step Decoder::step_of(const JsonPlace& place) const {
  const std::string type = place.type();
  if (type == "ByteLevel") return from_byte_level;
  if (type == "ByteFallback") return with_bytes_joined;
  if (type == "Fuse") return fused;
  if (type == "Replace")
    return [pattern = read_pattern(place["pattern"]), content = place["content"].string()](Tokens tokens) {
      for (std::string& token : tokens) token = with_replacements(pattern, token, content);
      return tokens;
    };
  if (type == "Strip") {
    const std::string content = place["content"].string();
    if (content.empty()) place["content"].refuse("should be a character");
    return
        [content, start = place["start"].integer(0, 1 << 30), stop = place["stop"].integer(0, 1 << 30)](Tokens tokens) {
          for (std::string& token : tokens) token = without_content(token, content, start, stop);
          return tokens;
        };
  }
  if (type == "Metaspace")
    return [replacement = read_replacement(place), scheme = read_prepend_scheme(place)](Tokens tokens) {
      return from_metaspace(std::move(tokens), replacement, /*drop_first=*/scheme != "never");
    };
  place.refuse(
      fmt::format("has type {}; known decoders: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, "
                  "Metaspace",
                  in_quotes(type)));
}

std::string bytes_of_piece(const std::string& token) {
  if (const auto byte = byte_of(token)) return {*byte};
  return from_metaspace({token}, "\u2581", /*drop_first=*/false).front();
}

std::string Decoder::bytes(const std::string& token) const {
  std::string bytes;
  return has_byte_level_ ? (append_byte_level_bytes(bytes, token) ? bytes : token) : bytes_of_piece(token);
}

std::string Decoder::decode(Tokens tokens) const {
  for (const Step& step : steps_) tokens = step(std::move(tokens));
  return fmt::format("{}", fmt::join(tokens, separator_));
}

}  // namespace braid
