#include "data/text/decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/byte_level.h"
#include "data/text/pattern.h"

namespace braid {
namespace {

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
std::string stripped(std::string_view token, const std::string& content, std::int64_t start, std::int64_t stop) {
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

Decoder::Decoder(const JsonPlace& place) : separator_(place.is_null() ? " " : "") {
  if (!place.is_null()) add(place);
}

void Decoder::add(const JsonPlace& place) {
  if (place.type() != "Sequence") {
    steps_.push_back(step_of(place));
    has_byte_level_ |= place.type() == "ByteLevel";
    return;
  }
  for (const JsonPlace& part : place["decoders"].elements()) add(part);
}

Decoder::Step Decoder::step_of(const JsonPlace& place) const {
  const std::string type = place.type();
  if (type == "ByteLevel") return from_byte_level;
  if (type == "ByteFallback") return with_bytes_joined;
  if (type == "Fuse") return fused;
  if (type == "Replace")
    return [pattern = std::make_shared<const Regex>(read_pattern(place["pattern"])),
            content = place["content"].string()](Tokens tokens) {
      for (std::string& token : tokens) token = with_replacements(*pattern, token, content);
      return tokens;
    };
  if (type == "Strip") {
    const std::string content = place["content"].string();
    if (content.empty()) place["content"].refuse("should be a character");
    return
        [content, start = place["start"].integer(0, 1 << 30), stop = place["stop"].integer(0, 1 << 30)](Tokens tokens) {
          for (std::string& token : tokens) token = stripped(token, content, start, stop);
          return tokens;
        };
  }
  if (type == "Metaspace") {
    const std::string scheme =
        place["prepend_scheme"].string_or(place["add_prefix_space"].boolean_or(true) ? "always" : "never");
    const std::string replacement = place["replacement"].string_or("\u2581");
    if (replacement.empty()) place["replacement"].refuse("should not be empty");
    return [replacement, drop_first = scheme != "never"](Tokens tokens) {
      return from_metaspace(std::move(tokens), replacement, drop_first);
    };
  }
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
