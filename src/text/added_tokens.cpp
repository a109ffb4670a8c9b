#include "text/added_tokens.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace braid {
namespace {

std::optional<std::uint32_t> last_character(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && (static_cast<unsigned char>(text[--begin]) & 0xc0) == 0x80) {
  }
  text.remove_prefix(begin);
  return text.empty() ? std::nullopt : take_character(text);
}

std::optional<std::uint32_t> first_character(std::string_view text) {
  return text.empty() ? std::nullopt : take_character(text);
}

bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  const auto before = last_character(text.substr(0, begin)), after = first_character(text.substr(end));
  return !(before && is_word_character(*before)) && !(after && is_word_character(*after));
}

std::size_t without_trailing_space(std::string_view text) {
  std::size_t end = 0;
  for (std::string_view rest = text; !rest.empty();)
    if (!is_white_space(*take_character(rest))) end = text.size() - rest.size();
  return end;
}

std::size_t leading_space(std::string_view text) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t at = text.size() - rest.size();
    if (!is_white_space(*take_character(rest))) return at;
  }
  return text.size();
}

AddedToken read_token(const JsonPlace& place, const Normalizer& normalizer) {
  AddedToken token;
  token.content = place["content"].string();
  if (token.content.empty()) place["content"].refuse("should not be empty");
  token.id = static_cast<int>(place["id"].integer(0, (1 << 30)));
  token.single_word = place["single_word"].boolean_or(false);
  token.lstrip = place["lstrip"].boolean_or(false);
  token.rstrip = place["rstrip"].boolean_or(false);
  token.special = place["special"].boolean_or(false);
  token.normalized = place["normalized"].boolean_or(!token.special);
  if (token.single_word) require_unicode_data("a token with single_word");
  token.searched = token.normalized ? normalizer.apply(token.content) : token.content;
  if (token.searched.empty()) place["content"].refuse("is empty after normalisation");
  return token;
}

}  // namespace

TextFinder::TextFinder(const std::vector<std::string_view>& texts) {
  std::size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  children_ = PairTable(bytes);
  ends_.push_back(kNone);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::uint32_t node = 0;
    for (const char c : texts[i]) {
      const auto byte = static_cast<unsigned char>(c);
      const PairTable::Value* child = children_.find(node, byte);
      if (!child) {
        children_.put(node, byte, {static_cast<std::uint32_t>(ends_.size()), 0});
        node = static_cast<std::uint32_t>(ends_.size());
        ends_.push_back(kNone);
      } else {
        node = child->first;
      }
    }
    ends_[node] = static_cast<std::uint32_t>(i);
    begins_[static_cast<unsigned char>(texts[i][0])] = true;
  }
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Found> longest;
    std::uint32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      const PairTable::Value* child = children_.find(node, static_cast<unsigned char>(text[at]));
      if (!child) break;
      node = child->first;
      if (ends_[node] != kNone) longest = Found{begin, at + 1, ends_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const JsonPlace& place, const Vocabulary& vocabulary, const Normalizer& normalizer)
    : end_id_(vocabulary.end_id()) {
  if (!place.is_null() && !place.value().is_array()) place.expected("a list");
  tokens_.reserve(place.value().size());  // by_content_ refers to the strings
  // Hugging Face's library ignores the ids of the file: new tokens are numbered from the size of the vocabulary on.
  int next_id = vocabulary.count();
  for (std::size_t i = 0; i < place.value().size(); ++i) {
    const AddedToken token = read_token(place[i], normalizer);
    if (by_content_.count(token.content)) place[i].refuse(fmt::format("repeats {}", in_quotes(token.content)));
    const auto in_vocabulary = vocabulary.find(token.content);
    const int expected = in_vocabulary ? *in_vocabulary : next_id++;
    if (token.id != expected)
      place[i]["id"].refuse(fmt::format("is {}, but {} {} {}", token.id, in_quotes(token.content),
                                        in_vocabulary ? "is in the vocabulary with" : "would be given by others",
                                        expected));
    if (!in_vocabulary && vocabulary.has(token.id))
      place[i]["id"].refuse(fmt::format("is {}, which {} has", token.id, in_quotes(vocabulary.token(token.id))));
    tokens_.push_back(token);
    by_content_[tokens_.back().content] = i;
    by_id_[token.id] = i;
    end_id_ = std::max(end_id_, token.id + 1);
  }
  for (const bool normalized : {false, true}) {
    std::vector<std::string_view> texts;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      if (tokens_[i].normalized == normalized) {
        texts.push_back(tokens_[i].searched);
        indices.push_back(i);
      }
    searches_.push_back({TextFinder(texts), indices});
  }
}

std::vector<AddedTokens::Part> AddedTokens::parts_of(std::string_view text, bool normalized) const {
  const auto& [finder, tokens] = searches_[normalized];
  std::vector<Part> parts;
  std::size_t done = 0;
  std::size_t from = 0;
  while (const auto found = tokens.empty() ? std::nullopt : finder.find(text, from)) {
    const AddedToken& token = tokens_[tokens[found->index]];
    auto [begin, end, index] = *found;
    from = end;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    // What an earlier token has taken stays taken.
    if (token.lstrip && begin > done) begin = done + without_trailing_space(text.substr(done, begin - done));
    if (token.rstrip) end += leading_space(text.substr(end));
    if (begin > done) parts.push_back({done, begin, nullptr});
    parts.push_back({begin, end, &token});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), nullptr});
  return parts;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::with_id(int id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace braid
