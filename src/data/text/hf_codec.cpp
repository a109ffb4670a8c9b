// A tokenizer.json: its model, its added tokens, and all its parts put together.
#include <nlohmann/json.hpp>
#include <queue>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/tokenizer.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

constexpr int kLargestId = 1 << 30;

// The tokens of a model and their ids, in both directions.
class Vocabulary {
 public:
  // {"token": id, ...}. DataError if two tokens have one id, or an id is far beyond the number of tokens.
  explicit Vocabulary(const JsonPlace& place) {
    if (!place.value().is_object()) place.expected("an object from tokens to ids");
    const auto& entries = place.value().get_ref<const nlohmann::json::object_t&>();
    // Ids may have gaps, but a table of them must not be much larger than the file.
    const std::int64_t largest = 4 * static_cast<std::int64_t>(entries.size()) + 100'000;
    std::int64_t end = 0;
    for (const auto& [token, id] : entries)
      end = std::max(end, JsonPlace(id, fmt::format("{}[{}]", place.path(), in_quotes(token))).integer(0, largest) + 1);
    tokens_.resize(static_cast<std::size_t>(end));
    is_used_.resize(tokens_.size());
    ids_.reserve(entries.size());
    for (const auto& [token, id_value] : entries) {
      const auto id = id_value.get<std::size_t>();
      if (is_used_[id])
        place.refuse(fmt::format("gives the id {} to {} and to {}", id, in_quotes(tokens_[id]), in_quotes(token)));
      tokens_[id] = token;
      is_used_[id] = true;
      ids_.emplace(tokens_[id], static_cast<int>(id));
    }
  }
  Vocabulary(const Vocabulary&) = delete;

  std::optional<int> find(std::string_view token) const { return value_in(ids_, token); }
  bool has(int id) const { return id >= 0 && id < end_id() && is_used_[id]; }
  const std::string& token(int id) const { return tokens_[id]; }
  int end_id() const { return static_cast<int>(tokens_.size()); }  // one more than the largest id
  int count() const { return static_cast<int>(ids_.size()); }

 private:
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> is_used_;
  std::unordered_map<std::string_view, int> ids_;  // of texts in tokens_
};

// The tokens of words seen before. When it is full, it starts again empty.
struct WordHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};
using WordCache = std::unordered_map<std::string, std::vector<int>, WordHash, std::equal_to<>>;
constexpr std::size_t kMostWords = 1 << 15, kLongestWord = 256;

constexpr int kNoRank = std::numeric_limits<int>::max();

std::pair<std::string, std::string> read_merge(const JsonPlace& place) {
  if (place.value().is_array() && place.value().size() == 2)
    return {place[std::size_t{0}].string(), place[std::size_t{1}].string()};
  const std::string& text = place.string();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    place.expected("two tokens with a space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

// Byte-pair encoding. A word starts as single characters, and the pair of neighbours with the lowest rank is merged,
// leftmost first, until no pair has a rank.
class Bpe {
 public:
  // DataError for other models, options that are not supported, and merges of unknown tokens.
  Bpe(const JsonPlace& place, const Vocabulary& vocabulary) : vocabulary_(vocabulary), where_(place.path()) {
    const JsonPlace type = place["type"];
    if (!type.is_null() && type.string() != "BPE")
      type.refuse(fmt::format("is {}; the only known model is BPE", in_quotes(type.string())));
    const JsonPlace dropout = place["dropout"];
    if (!dropout.is_null() && dropout.value() != 0) dropout.refuse("is not supported: tokens would be random");
    unknown_token_ = place["unk_token"].string_or("");
    unknown_id_ = vocabulary_.find(unknown_token_);
    prefix_ = place["continuing_subword_prefix"].string_or("");
    suffix_ = place["end_of_word_suffix"].string_or("");
    byte_fallback_ = place["byte_fallback"].boolean_or(false);
    fuse_unknown_ = place["fuse_unk"].boolean_or(false);
    ignore_merges_ = place["ignore_merges"].boolean_or(false);
    read_merges(place["merges"]);
  }

  // Each call takes a cache, so that threads do not wait for each other.
  void encode(const Pieces& pieces, std::vector<int>& out) const {
    WordCache cache;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        cache = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    out.reserve(out.size() + pieces.list.size() + pieces.list.size() / 2);
    for (const Piece& piece : pieces.list) encode_word(pieces.view(piece), cache, out);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cache));
  }

 private:
  struct Merge {
    int rank = kNoRank, product = 0;
  };
  static std::uint64_t pair_key(int left, int right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  Merge merge_of(int left, int right) const { return value_in(merges_, pair_key(left, right)).value_or(Merge()); }

  void read_merges(const JsonPlace& place) {
    if (!place.value().is_array()) place.expected("a list");
    const std::size_t count = place.value().size();
    merges_.reserve(count);
    const auto known = [&](const std::string& token, std::size_t i) {
      const auto id = vocabulary_.find(token);
      if (!id) place[i].refuse(fmt::format("names {}, which is not in the vocabulary", in_quotes(token)));
      return *id;
    };
    for (std::size_t i = 0; i < count; ++i) {
      const auto [left, right] = read_merge(place[i]);
      if (right.size() < prefix_.size()) place[i].refuse("has a token that is shorter than continuing_subword_prefix");
      const int first = known(left, i), second = known(right, i);
      merges_[pair_key(first, second)] = {static_cast<int>(i), known(left + right.substr(prefix_.size()), i)};
    }
  }

  void encode_word(std::string_view word, WordCache& cache, std::vector<int>& out) const {
    if (const auto known = cache.find(word); known != cache.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      return;
    }
    std::vector<int> ids;
    if (const auto whole = ignore_merges_ ? vocabulary_.find(word) : std::nullopt) {
      ids.push_back(*whole);
    } else {
      split_characters(word, ids);
      merge(ids);
    }
    out.insert(out.end(), ids.begin(), ids.end());
    if (cache.size() == kMostWords) cache.clear();
    if (word.size() <= kLongestWord) cache.emplace(word, std::move(ids));
  }

  // A run of unknown characters waits in `unknown`, because with fuse_unk it becomes one token. Bytes do not end the
  // run: Hugging Face's library puts them before it, too.
  void split_characters(std::string_view word, std::vector<int>& ids) const {
    std::optional<int> unknown;
    const auto flush = [&] {
      if (unknown) ids.push_back(*unknown);
      unknown.reset();
    };
    for (std::size_t at = 0; at < word.size();) {
      const std::string_view character = word.substr(at, std::max<std::size_t>(utf8_length(word.substr(at)), 1));
      const bool is_first = at == 0;
      at += character.size();
      const bool is_last = at >= word.size();
      const bool is_plain = (is_first || prefix_.empty()) && (!is_last || suffix_.empty());
      if (const auto id = vocabulary_.find(is_plain ? character : decorated(character, is_first, is_last))) {
        flush();
        ids.push_back(*id);
      } else if (!byte_fallback_ || !append_bytes(character, is_first, is_last, ids)) {
        if (unknown_token_.empty()) continue;
        if (!fuse_unknown_) flush();
        if (!unknown_id_)
          throw DataError(fmt::format("{} has no token for {}, and its unk_token {} is not in the vocabulary", where_,
                                      in_quotes(character), in_quotes(unknown_token_)));
        unknown = unknown_id_;
      }
    }
    flush();
  }

  std::string decorated(std::string_view character, bool is_first, bool is_last) const {
    return fmt::format("{}{}{}", is_first ? "" : prefix_, character, is_last ? suffix_ : "");
  }

  bool append_bytes(std::string_view character, bool is_first, bool is_last, std::vector<int>& ids) const {
    const std::size_t before = ids.size();
    for (const char byte : decorated(character, is_first, is_last)) {
      const auto id = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
      if (!id) {
        ids.resize(before);
        return false;
      }
      ids.push_back(*id);
    }
    return true;
  }

  void merge(std::vector<int>& ids) const {
    // Rank, place of the left token, ids of both, id of the product.
    using Candidate = std::tuple<int, std::size_t, int, int, int>;
    constexpr int kMerged = -1;
    std::vector<std::size_t> before(ids.size()), after(ids.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto consider = [&](std::size_t left, std::size_t right) {
      const auto [rank, product] = merge_of(ids[left], ids[right]);
      if (rank != kNoRank) queue.push({rank, left, ids[left], ids[right], product});
    };
    for (std::size_t i = 0; i < ids.size(); ++i) {
      before[i] = i - 1;
      after[i] = i + 1;
      if (i + 1 < ids.size()) consider(i, i + 1);
    }
    while (!queue.empty()) {
      const auto [rank, left, left_id, right_id, product] = queue.top();
      queue.pop();
      const std::size_t right = after[left];
      // An entry is out of date if one of its two symbols has been merged since.
      if (ids[left] != left_id || right == ids.size() || ids[right] != right_id) continue;
      ids[left] = product;
      ids[right] = kMerged;
      after[left] = after[right];
      if (after[left] < ids.size()) {
        before[after[left]] = left;
        consider(left, after[left]);
      }
      if (left > 0) consider(before[left], left);
    }
    std::erase(ids, kMerged);
  }

  const Vocabulary& vocabulary_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // of pairs of ids
  std::string unknown_token_, where_;
  std::optional<int> unknown_id_;
  std::string prefix_, suffix_;  // of tokens inside a word, and at its end
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<WordCache> idle_;
};

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

// Reads all but the token's id.
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

// Added tokens by their first byte. Of two equal ones the last counts.
using Search = std::array<std::map<std::string_view, const AddedToken*>, 256>;

// The longest token that a text begins with; null: none.
const AddedToken* token_at(const Search& search, std::string_view text) {
  const auto& tokens = search[static_cast<unsigned char>(text[0])];
  while (!tokens.empty()) {
    // If the last one in order is not a beginning of the text, a beginning can only be in what they share.
    const auto after = tokens.upper_bound(text);
    if (after == tokens.begin()) return nullptr;
    const auto& [searched, token] = *std::prev(after);
    if (text.starts_with(searched)) return token;
    text = text.substr(0, static_cast<std::size_t>(std::ranges::mismatch(text, searched).in1 - text.begin()));
  }
  return nullptr;
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
    std::vector<AddedToken> special;
    std::set<std::string> names;
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
      if (const JsonPlace place = config[key]; !place.is_null())
        names.insert(special.emplace_back(read_special_token(place, normalizer)).content);
    for (const auto& [id, place] : tokens_by_id(config["added_tokens_decoder"])) {
      AddedToken token = read_token(place, normalizer);
      token.id = id;
      token.special |= names.contains(token.content);
      add(std::move(token), place);
    }
    const JsonPlace newer = config["extra_special_tokens"], extra = config["additional_special_tokens"];
    if (newer.value().is_array() || extra.value().is_array())
      for (const JsonPlace& place : (newer.value().is_array() ? newer : extra).elements())
        special.push_back(read_special_token(place, normalizer));
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
      : vocabulary_(place["model"]["vocab"]), model_(place["model"], vocabulary_),
        normalizer_(read_normalizer(place["normalizer"])),
        added_(place["added_tokens"], config, vocabulary_, normalizer_),
        pre_tokenizer_(read_pre_tokenizer(place["pre_tokenizer"])),
        frame_(read_post_processor(place["post_processor"])), decoder_(read_decoder(place["decoder"])) {}

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
      model_.encode(pieces, ids);
    }
  }

  const Vocabulary vocabulary_;
  const Bpe model_;
  const Steps<std::string> normalizer_;
  const AddedTokens added_;
  const Steps<Pieces> pre_tokenizer_;
  const SpecialFrame frame_;
  const TokenDecoder decoder_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_hf_codec(std::string_view text, const std::string& name, const JsonPlace* config) {
  const nlohmann::json json = parse_json_file(text, name);
  return std::make_unique<HfCodec>(JsonPlace(json, name), config);
}

}  // namespace braid
