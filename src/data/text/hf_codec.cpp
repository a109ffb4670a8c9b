// A tokenizer.json: its added tokens, and its parts put together.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

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

bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  std::string_view rest = text.substr(end);
  const auto before = last_character(text.substr(0, begin)), after = rest.empty() ? std::nullopt : take_character(rest);
  return !(before && is_word_character(*before)) && !(after && is_word_character(*after));
}

// The "added_tokens" of a tokenizer.json, and those that a tokenizer_config.json adds to them: tokens that are found in
// the text before it is split into words.
struct AddedToken {
  std::string content;
  std::string searched;  // its content, normalised if `normalized`
  int id = 0;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// Without its id.
AddedToken read_token(const JsonPlace& place, const Steps<std::string>& normalizer) {
  AddedToken token;
  token.content = place["content"].string();
  if (token.content.empty()) place["content"].refuse("should not be empty");
  token.single_word = place["single_word"].boolean_or(false);
  token.lstrip = place["lstrip"].boolean_or(false);
  token.rstrip = place["rstrip"].boolean_or(false);
  token.special = place["special"].boolean_or(false);
  token.normalized = place["normalized"].boolean_or(!token.special);
  token.searched = token.content;
  if (token.normalized) apply(normalizer, token.searched);
  if (token.searched.empty()) place["content"].refuse("is empty after normalisation");
  return token;
}

// "bos_token": "<s>", or {"content": "<s>", ...}.
AddedToken read_special_token(const JsonPlace& place, const Steps<std::string>& normalizer) {
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

std::vector<AddedToken> named_tokens(const JsonPlace& config, const Steps<std::string>& normalizer) {
  std::vector<AddedToken> tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (const JsonPlace place = config[name]; !place.is_null()) tokens.push_back(read_special_token(place, normalizer));
  return tokens;
}

std::vector<AddedToken> extra_tokens(const JsonPlace& config, const Steps<std::string>& normalizer) {
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

// By their first byte; the last one if two are equal.
using Search = std::array<std::map<std::string_view, const AddedToken*>, 256>;

// The longest token that a text begins with; null: none.
const AddedToken* token_at(const Search& search, std::string_view text) {
  const auto& tokens = search[static_cast<unsigned char>(text[0])];
  while (true) {
    // If the last one in order is not a beginning of the text, a beginning can only be in what they share.
    const auto after = tokens.upper_bound(text);
    if (after == tokens.begin()) return nullptr;
    const auto& [searched, token] = *std::prev(after);
    if (text.starts_with(searched)) return token;
    text = text.substr(0, static_cast<std::size_t>(std::ranges::mismatch(text, searched).in1 - text.begin()));
  }
}

class AddedTokens {
 public:
  // `config` is the tokenizer_config.json, if there is one. DataError if a token's id is another token's, or not the
  // one that Hugging Face's libraries give it.
  AddedTokens(const JsonPlace& place, const JsonPlace* config, const Vocabulary& vocabulary,
              const Steps<std::string>& normalizer)
      : vocabulary_(vocabulary), next_id_(vocabulary.count()), end_id_(vocabulary.end_id()) {
    if (!place.is_null() && !place.value().is_array()) place.expected("a list");
    for (std::size_t i = 0; i < place.value().size(); ++i) {
      AddedToken token = read_token(place[i], normalizer);
      token.id = static_cast<int>(place[i]["id"].integer(0, kLargestId));
      if (find(token.content)) place[i].refuse(fmt::format("repeats {}", in_quotes(token.content)));
      add(std::move(token), place[i]["id"]);
    }
    if (config) add_config(*config, normalizer);
    for (const AddedToken& token : tokens_)
      searches_[token.normalized][static_cast<unsigned char>(token.searched[0])][token.searched] = &token;
  }

  // A part of a text: an added token, or what is between two of them.
  struct Part {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  // All parts in order. `normalized` chooses the tokens: those searched in normalised text, or those in the original.
  std::vector<Part> parts_of(std::string_view text, bool normalized) const {
    std::vector<Part> parts;
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const AddedToken* token = token_at(searches_[normalized], text.substr(at));
      std::size_t begin = at, end = at += token ? token->searched.size() : 1;
      if (!token || (token->single_word && !is_single_word(text, begin, end))) continue;
      // What an earlier token has taken stays taken.
      if (token->lstrip && begin > done)
        begin = done + without_white_space(text.substr(done, begin - done), false, true).size();
      if (token->rstrip) end = text.size() - without_white_space(text.substr(end), true, false).size();
      if (begin > done) parts.push_back({done, begin});
      parts.push_back({begin, end, token});
      done = end;
    }
    if (done < text.size()) parts.push_back({done, text.size()});
    return parts;
  }

  const AddedToken* find(std::string_view content) const {
    const auto found = by_content_.find(content);
    return found == by_content_.end() ? nullptr : &tokens_[found->second];
  }

  const AddedToken* with_id(int id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &tokens_[found->second];
  }

  int end_id() const { return end_id_; }  // one more than the largest id, of these and the vocabulary

 private:
  // What transformers adds to the tokens of tokenizer.json when it loads a folder.
  void add_config(const JsonPlace& config, const Steps<std::string>& normalizer) {
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

  void add(AddedToken token, const JsonPlace& place) {
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

  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_{};
  std::map<std::string, std::size_t, std::less<>> by_content_{};
  std::unordered_map<int, std::size_t> by_id_{};
  int next_id_, end_id_;
  Search searches_[2];  // for the original text, for normalised text
};

class HfCodec : public TokenCodec {
 public:
  HfCodec(const JsonPlace& place, const JsonPlace* config)
      : vocabulary_(place["model"]["vocab"]),
        encode_pieces_(read_model(place["model"], vocabulary_)),
        normalizer_(read_normalizer(place["normalizer"])),
        added_(place["added_tokens"], config, vocabulary_, normalizer_),
        pre_tokenizer_(read_pre_tokenizer(place["pre_tokenizer"])),
        frame_(read_post_processor(place["post_processor"])),
        decoder_(read_decoder(place["decoder"])) {}

  std::vector<int> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    if (add_special) ids = frame_.before;
    for (const auto& [begin, end, token] : added_.parts_of(text, /*normalized=*/false))
      if (token)
        ids.push_back(token->id);
      else
        encode_gap(std::string(text.substr(begin, end - begin)), begin == 0, ids);
    if (add_special) ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
    return ids;
  }

  std::string decode(const std::vector<int>& ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    for (const int id : ids) {
      const AddedToken* added = added_.with_id(id);
      if (added && added->special && skip_special) continue;
      if (!added && !vocabulary_.has(id))
        throw DataError(fmt::format("no token has the id {}; ids are below {}", id, vocab_size()));
      tokens.push_back(added ? added->searched : vocabulary_.token(id));
    }
    return decoder_.decode(std::move(tokens));
  }

  std::optional<int> find(std::string_view token) const override {
    const AddedToken* added = added_.find(token);
    return added ? std::optional(added->id) : vocabulary_.find(token);
  }

  std::optional<std::string> token(int id) const override {
    const AddedToken* added = added_.with_id(id);
    if (added) return added->content;
    return vocabulary_.has(id) ? std::optional(vocabulary_.token(id)) : std::nullopt;
  }

  std::string bytes(int id) const override {
    const AddedToken* added = added_.with_id(id);
    return added ? added->content : decoder_.bytes(vocabulary_.token(id));
  }
  bool is_special(int id) const override {
    const AddedToken* added = added_.with_id(id);
    return added && added->special;
  }

  int vocab_size() const override { return added_.end_id(); }

 private:
  // The text between added tokens of the first kind: normalised, then searched for those of the second kind.
  void encode_gap(std::string gap, bool is_first, std::vector<int>& ids) const {
    apply(normalizer_, gap);
    for (const auto& [begin, end, token] : added_.parts_of(gap, /*normalized=*/true)) {
      if (token) {
        ids.push_back(token->id);
        continue;
      }
      Pieces pieces{gap.substr(begin, end - begin), {{0, end - begin, is_first && begin == 0}}};
      apply(pre_tokenizer_, pieces);
      encode_pieces_(pieces, ids);
    }
  }

  const Vocabulary vocabulary_;
  const PieceEncoder encode_pieces_;
  const Steps<std::string> normalizer_;
  const AddedTokens added_;
  const Steps<Pieces> pre_tokenizer_;
  const SpecialFrame frame_;
  const Decoder decoder_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_hf_codec(std::string_view text, const std::string& name, const JsonPlace* config) {
  const nlohmann::json json = parse_json_file(text, name);
  return std::make_unique<HfCodec>(JsonPlace(json, name), config);
}

}  // namespace braid
