#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/chat.h"
#include "data/text/tokenizer.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

using Text = std::string;
using Tokens = std::vector<std::string>;

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kMetaspace = "\u2581";

// The steps of a place: none if it is null, and those of its `parts` if it is a Sequence. `add` adds a step, and
// returns whether it knows the type; `known` is for messages.
template <class Value>
Steps<Value> read_steps(const JsonPlace& place, const char* parts, const char* known,
                        bool (*add)(const std::string& type, const JsonPlace& place, Steps<Value>& steps)) {
  Steps<Value> steps;
  const auto read = [&](const auto& self, const JsonPlace& step) -> void {
    const std::string type = step.type();
    if (type == "Sequence")
      for (const JsonPlace& part : step[parts].elements()) self(self, part);
    else if (!add(type, step, steps))
      step.refuse(fmt::format("has type {}; known {}", in_quotes(type), known));
  };
  if (!place.is_null()) read(read, place);
  return steps;
}

// {"Regex": "..."} or {"String": "..."}.
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

// The text with every match replaced.
std::string with_replacements(const Regex& pattern, const std::string& text, const std::string& replacement) {
  if (text.empty()) return text;
  std::string result;
  std::size_t done = 0;
  for (const auto& [begin, end] : pattern.matches(text)) {
    result.append(text, done, begin - done);
    result += replacement;
    done = end;
  }
  return result.append(text, done);
}

// What a Metaspace writes for a space, and which texts it begins with one: "always", "first" or "never".
struct Metaspace {
  std::string replacement, scheme;

  explicit Metaspace(const JsonPlace& place) : replacement(place["replacement"].string_or(kMetaspace)) {
    if (replacement.empty()) place["replacement"].refuse("should not be empty");
    const JsonPlace prepends = place["prepend_scheme"];
    scheme = prepends.string_or(place["add_prefix_space"].boolean_or(true) ? "always" : "never");  // its older name
    if (scheme != "always" && scheme != "first" && scheme != "never") prepends.expected("always, first or never");
  }
};

void add_replacement(const Regex& pattern, const std::string& content, Steps<Text>& steps) {
  steps.push_back([=](Text& text) { text = with_replacements(pattern, text, content); });
}

bool add_normalizer(const std::string& type, const JsonPlace& place, Steps<Text>& steps) {
  static const std::vector<std::string> forms = {"NFC", "NFD", "NFKC", "NFKD"};
  if (const auto form = std::ranges::find(forms, type); form != forms.end()) {
    require_normal_forms(fmt::format("the normalizer {}", type));
    steps.push_back(
        [chosen = static_cast<NormalForm>(form - forms.begin())](Text& text) { text = normal_form(text, chosen); });
  } else if (type == "Lowercase") {
    steps.push_back([](Text& text) {
      Text lower;
      for (std::string_view rest = text; !rest.empty();) append_lowercase(lower, *take_character(rest));
      text = std::move(lower);
    });
  } else if (type == "Strip") {
    const bool left = place["strip_left"].boolean_or(true), right = place["strip_right"].boolean_or(true);
    steps.push_back([=](Text& text) { text = std::string(without_white_space(text, left, right)); });
  } else if (type == "StripAccents") {
    add_replacement(Regex(R"(\p{@mark}+)"), "", steps);
  } else if (type == "Prepend") {
    steps.push_back([prefix = place["prepend"].string()](Text& text) {
      if (!text.empty()) text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    add_replacement(read_pattern(place["pattern"]), place["content"].string(), steps);
  } else {
    return false;
  }
  return true;
}

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

SplitBehavior read_behavior(const JsonPlace& place) {
  static const std::vector<std::string> names = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                 "Contiguous"};
  if (place.is_null()) return SplitBehavior::Isolated;
  const auto found = std::ranges::find(names, place.string());
  if (found == names.end()) place.expected(joined_by_or(names));
  return static_cast<SplitBehavior>(found - names.begin());
}

// Divides each piece at the matches of a pattern.
void split(Pieces& pieces, const Regex& pattern, SplitBehavior behavior, bool inverted) {
  std::vector<Piece> parts;
  parts.reserve(pieces.text.size() / 4 + 1);
  for (const Piece& piece : pieces.list) {
    const std::size_t first = parts.size();
    std::size_t done = piece.begin;
    bool last_matched = false;
    const auto add_up_to = [&](std::size_t end, bool matches) {
      const std::size_t begin = std::exchange(done, end);
      if (matches && behavior == SplitBehavior::Removed) return;
      const bool extends = (behavior == SplitBehavior::MergedWithPrevious && matches && !last_matched) ||
                           (behavior == SplitBehavior::MergedWithNext && !matches && last_matched) ||
                           (behavior == SplitBehavior::Contiguous && matches == last_matched);
      last_matched = matches;
      if (extends && parts.size() > first)
        parts.back().end = end;
      else
        parts.push_back({begin, end, piece.is_first && begin == piece.begin});
    };
    for (const auto& [begin, end] : pattern.matches(pieces.view(piece))) {
      if (piece.begin + begin > done) add_up_to(piece.begin + begin, inverted);
      add_up_to(piece.begin + end, !inverted);
    }
    if (done < piece.end) add_up_to(piece.end, inverted);
  }
  std::erase_if(parts, [](const Piece& part) { return part.begin >= part.end; });
  pieces.list.swap(parts);
}

void add_split(Steps<Pieces>& steps, const Regex& pattern, SplitBehavior behavior, bool inverted = false) {
  steps.push_back([=](Pieces& pieces) { split(pieces, pattern, behavior, inverted); });
}

// Writes every piece anew: append(text, piece, is_first).
template <class Append>
void add_rewrite(Steps<Pieces>& steps, const Append& append) {
  steps.push_back([append](Pieces& pieces) {
    std::string text;
    text.reserve(pieces.text.size() + pieces.text.size() / 2 + 16);
    for (Piece& piece : pieces.list) {
      const std::size_t begin = text.size();
      append(text, pieces.view(piece), piece.is_first);
      piece.begin = begin;
      piece.end = text.size();
    }
    pieces.text.swap(text);
  });
}

void add_byte_level(const JsonPlace& place, Steps<Pieces>& steps) {
  if (place["add_prefix_space"].boolean_or(true))
    add_rewrite(steps, [](std::string& out, std::string_view piece, bool) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
    });
  if (place["use_regex"].boolean_or(true)) add_split(steps, Regex(kGpt2Pattern), SplitBehavior::Isolated);
  add_rewrite(steps, [](std::string& out, std::string_view piece, bool) { append_byte_level(out, piece); });
}

void add_metaspace(const JsonPlace& place, Steps<Pieces>& steps) {
  const Metaspace metaspace(place);
  add_rewrite(steps, [metaspace](std::string& out, std::string_view piece, bool is_first) {
    const auto& [replacement, scheme] = metaspace;
    const bool is_wanted = scheme == "always" || (scheme == "first" && is_first);
    if (is_wanted && !piece.starts_with(' ') && !piece.starts_with(replacement)) out += replacement;
    out += replace_text(piece, " ", replacement);
  });
  if (place["split"].boolean_or(true))
    add_split(steps, Regex::literal(metaspace.replacement), SplitBehavior::MergedWithNext);
}

bool add_pre_tokenizer(const std::string& type, const JsonPlace& place, Steps<Pieces>& steps) {
  using enum SplitBehavior;
  if (type == "Split")
    add_split(steps, read_pattern(place["pattern"]), read_behavior(place["behavior"]),
              place["invert"].boolean_or(false));
  else if (type == "ByteLevel")
    add_byte_level(place, steps);
  else if (type == "Digits")
    add_split(steps, Regex(R"(\p{@number})"), place["individual_digits"].boolean_or(false) ? Isolated : Contiguous);
  else if (type == "Whitespace")
    add_split(steps, Regex(R"([\p{@rustword}]+|[^\p{@rustword}\s]+)"), Removed, /*inverted=*/true);
  else if (type == "WhitespaceSplit")
    add_split(steps, Regex(R"(\s)"), Removed);
  else if (type == "Punctuation")
    add_split(steps, Regex(R"(\p{@punctuation})"), read_behavior(place["behavior"]));
  else if (type == "Metaspace")
    add_metaspace(place, steps);
  else
    return false;
  return true;
}

SpecialFrame read_template(const JsonPlace& place) {
  SpecialFrame frame;
  bool seen_text = false;
  const JsonPlace single = place["single"];
  for (const JsonPlace& item : single.elements()) {
    if (const JsonPlace special = item["SpecialToken"]; !special.is_null()) {
      const JsonPlace ids = place["special_tokens"][special["id"].string().c_str()]["ids"];
      for (const JsonPlace& id : ids.elements())
        (seen_text ? frame.after : frame.before).push_back(static_cast<int>(id.integer(0, 1 << 30)));
      continue;
    }
    if (seen_text || item["Sequence"]["id"].string() != "A") item.refuse("should be the text (A), once");
    seen_text = true;
  }
  if (!seen_text) single.refuse("should contain the text (A)");
  return frame;
}

void from_byte_level(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens)
    if (!append_byte_level_bytes(bytes, token)) bytes += token;
  tokens = {with_valid_utf8(bytes)};
}

// "<0x41>".
std::optional<char> byte_of(const std::string& token) {
  unsigned char byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

void join_bytes(Tokens& tokens) {
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
  tokens = std::move(result);
}

// Removes up to `start` characters equal to `content` from the front, and up to `stop` from the end.
void add_strip(const JsonPlace& place, Steps<Tokens>& steps) {
  const std::string content = place["content"].string();
  if (content.empty()) place["content"].refuse("should be a character");
  const std::int64_t start = place["start"].integer(0, 1 << 30), stop = place["stop"].integer(0, 1 << 30);
  steps.push_back([=](Tokens& tokens) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (auto left = start; left > 0 && rest.starts_with(content); --left) rest.remove_prefix(content.size());
      for (auto left = stop; left > 0 && rest.ends_with(content); --left) rest.remove_suffix(content.size());
      token = std::string(rest);
    }
  });
}

bool add_decoder(const std::string& type, const JsonPlace& place, Steps<Tokens>& steps) {
  if (type == "ByteLevel")
    steps.push_back(from_byte_level);
  else if (type == "ByteFallback")
    steps.push_back(join_bytes);
  else if (type == "Fuse")
    steps.push_back([](Tokens& tokens) { tokens = {joined(tokens, "")}; });
  else if (type == "Replace")
    steps.push_back([pattern = read_pattern(place["pattern"]), content = place["content"].string()](Tokens& tokens) {
      for (std::string& token : tokens) token = with_replacements(pattern, token, content);
    });
  else if (type == "Strip")
    add_strip(place, steps);
  else if (type == "Metaspace")
    steps.push_back([metaspace = Metaspace(place)](Tokens& tokens) {
      for (std::string& token : tokens)
        token = replace_text(token, metaspace.replacement,
                             &token == &tokens.front() && metaspace.scheme != "never" ? "" : " ");
    });
  else
    return false;
  return true;
}

}  // namespace

Steps<Text> read_normalizer(const JsonPlace& place) {
  return read_steps(place, "normalizers",
                    "normalizers: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace",
                    add_normalizer);
}

Steps<Pieces> read_pre_tokenizer(const JsonPlace& place) {
  return read_steps(
      place, "pretokenizers",
      "pre-tokenizers: Sequence, Split, ByteLevel, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace",
      add_pre_tokenizer);
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

TokenDecoder read_decoder(const JsonPlace& place) {
  TokenDecoder decoder = {
      .steps = read_steps(place, "decoders",
                          "decoders: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace", add_decoder),
      .separator = place.is_null() ? " " : ""};
  decoder.has_byte_level = std::ranges::any_of(decoder.steps, [](const auto& step) {
    const auto* function = step.template target<void (*)(Tokens&)>();
    return function && *function == from_byte_level;
  });
  return decoder;
}

std::string TokenDecoder::decode(Tokens tokens) const {
  apply(steps, tokens);
  return joined(tokens, separator);
}

std::string TokenDecoder::bytes(const std::string& token) const {
  std::string bytes;
  return !has_byte_level ? bytes_of_piece(token) : append_byte_level_bytes(bytes, token) ? bytes : token;
}

std::string bytes_of_piece(const std::string& token) {
  const auto byte = byte_of(token);
  return byte ? std::string(1, *byte) : replace_text(token, kMetaspace, " ");
}

}  // namespace braid
