#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/tokenizer_steps.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

constexpr int kLargestId = 1 << 30;

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

// Without its id.
AddedToken read_token(const JsonPlace& place, const Normalizer& normalizer) {
  AddedToken token;
  token.content = place["content"].string();
  if (token.content.empty()) place["content"].refuse("should not be empty");
  token.single_word = place["single_word"].boolean_or(false);
  token.lstrip = place["lstrip"].boolean_or(false);
  token.rstrip = place["rstrip"].boolean_or(false);
  token.special = place["special"].boolean_or(false);
  token.normalized = place["normalized"].boolean_or(!token.special);
  token.searched = token.normalized ? normalizer.apply(token.content) : token.content;
  if (token.searched.empty()) place["content"].refuse("is empty after normalisation");
  return token;
}

// "bos_token": "<s>", or {"content": "<s>", ...}.
AddedToken read_special_token(const JsonPlace& place, const Normalizer& normalizer) {
  AddedToken token;
  if (place.value().is_object()) {
    token = read_token(place, normalizer);
  } else {
    token.content = token.searched = place.string();
    token.normalized = false;
  }
  token.special = true;
  return token;
}

std::vector<AddedToken> named_tokens(const JsonPlace& config, const Normalizer& normalizer) {
  std::vector<AddedToken> tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (const JsonPlace place = config[name]; !place.is_null()) tokens.push_back(read_special_token(place, normalizer));
  return tokens;
}

std::vector<AddedToken> extra_tokens(const JsonPlace& config, const Normalizer& normalizer) {
  std::vector<AddedToken> tokens;
  for (const char* name : {"extra_special_tokens", "additional_special_tokens"}) {  // the first is the newer name
    if (!config[name].value().is_array()) continue;
    for (const JsonPlace& place : config[name].elements()) tokens.push_back(read_special_token(place, normalizer));
    break;
  }
  return tokens;
}

// "added_tokens_decoder": {"7": {"content": "<s>", ...}, ...}, in the order of ids.
std::map<int, JsonPlace> tokens_by_id(const JsonPlace& place) {
  std::map<int, JsonPlace> by_id;
  if (place.is_null()) return by_id;
  if (!place.value().is_object()) place.expected("an object from ids to tokens");
  for (const auto& [key, value] : place.value().items()) {
    const JsonPlace token(value, fmt::format("{}[{}]", place.path(), in_quotes(key)));
    const auto id = parse_int64(key);
    if (!id || *id < 0 || *id > kLargestId) token.refuse("should have an id as its key");
    by_id.emplace(static_cast<int>(*id), token);
  }
  return by_id;
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

AddedTokens::AddedTokens(const JsonPlace& place, const JsonPlace* config, const Vocabulary& vocabulary,
                         const Normalizer& normalizer)
    : vocabulary_(vocabulary), next_id_(vocabulary.count()), end_id_(vocabulary.end_id()) {
  if (!place.is_null() && !place.value().is_array()) place.expected("a list");
  for (std::size_t i = 0; i < place.value().size(); ++i) {
    AddedToken token = read_token(place[i], normalizer);
    token.id = static_cast<int>(place[i]["id"].integer(0, kLargestId));
    if (find(token.content)) place[i].refuse(fmt::format("repeats {}", in_quotes(token.content)));
    add(std::move(token), place[i]["id"]);
  }
  if (config) add_config(*config, normalizer);
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

void AddedTokens::add_config(const JsonPlace& config, const Normalizer& normalizer) {
  std::vector<AddedToken> special = named_tokens(config, normalizer);
  std::set<std::string> names;
  for (const AddedToken& token : special) names.insert(token.content);
  for (const auto& [id, place] : tokens_by_id(config["added_tokens_decoder"])) {
    AddedToken token = read_token(place, normalizer);
    token.id = id;
    token.special |= names.contains(token.content);
    add(std::move(token), place);
  }
  std::ranges::move(extra_tokens(config, normalizer), std::back_inserter(special));
  for (AddedToken& token : special) {
    if (token.content.empty() || find(token.content)) continue;
    token.id = vocabulary_.find(token.content).value_or(next_id_);
    add(std::move(token), config);
  }
}

void AddedTokens::add(AddedToken token, const JsonPlace& place) {
  const auto known = by_content_.find(token.content);
  const auto in_vocabulary = vocabulary_.find(token.content);
  const bool is_new = known == by_content_.end() && !in_vocabulary;
  // Hugging Face's libraries ignore the ids of files: new tokens are numbered from the size of the vocabulary on.
  const int expected = in_vocabulary ? *in_vocabulary : is_new ? next_id_++ : tokens_[known->second].id;
  if (token.id != expected)
    place.refuse(fmt::format("is {}, but {} {} {}", token.id, in_quotes(token.content),
                             is_new ? "would be given by others" : "is in the vocabulary with", expected));
  if (is_new && vocabulary_.has(token.id))
    place.refuse(fmt::format("is {}, which {} has", token.id, in_quotes(vocabulary_.token(token.id))));
  if (known != by_content_.end()) {  // the later entry counts, but a special token remains one
    token.special |= tokens_[known->second].special;
    tokens_[known->second] = std::move(token);
    return;
  }
  by_id_[token.id] = by_content_[token.content] = tokens_.size();
  end_id_ = std::max(end_id_, token.id + 1);
  tokens_.push_back(std::move(token));
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
    if (token.lstrip && begin > done)
      begin = done + without_white_space(text.substr(done, begin - done), false, true).size();
    if (token.rstrip) end = text.size() - without_white_space(text.substr(end), true, false).size();
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
