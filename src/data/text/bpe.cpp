// Byte-pair encoding, the "model" of a tokenizer.json.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/tokenizer_steps.h"

namespace braid {
namespace {

// The tokens of words seen before. When it is full, it starts again empty.
struct WordHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};
using WordCache = std::unordered_map<std::string, std::vector<int>, WordHash, std::equal_to<>>;
constexpr std::size_t kMostWords = 1 << 15, kLongestWord = 256;

constexpr int kNoRank = std::numeric_limits<int>::max();
// Scanning all pairs for each merge is faster than a queue up to about this many characters.
constexpr std::size_t kLongestScanned = 64;

std::pair<std::string, std::string> read_merge(const JsonPlace& place) {
  if (place.value().is_array() && place.value().size() == 2)
    return {place[std::size_t{0}].string(), place[std::size_t{1}].string()};
  const std::string& text = place.string();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    place.expected("two tokens with a space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

// A word starts as single characters, and the pair of neighbours with the lowest rank is merged, leftmost first, until
// no pair has a rank.
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
    for (std::uint32_t code = 0; code < short_characters_.size(); ++code) {
      std::string character;
      append_utf8(character, code);
      short_characters_[code] = vocabulary_.find(character).value_or(-1);
    }
    read_merges(place["merges"]);
  }

  // Each call takes a workspace, so that threads do not wait for each other.
  void encode(const Pieces& pieces, std::vector<int>& out) const {
    std::unique_ptr<Workspace> workspace;
    {
      const std::lock_guard lock(mutex_);
      if (idle_.empty()) idle_.push_back(std::make_unique<Workspace>());
      workspace = std::move(idle_.back());
      idle_.pop_back();
    }
    out.reserve(out.size() + pieces.list.size() + pieces.list.size() / 2);
    for (const Piece& piece : pieces.list) encode_word(pieces.view(piece), *workspace, out);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  struct Merge {
    int rank, product;
  };
  static std::uint64_t pair_key(int left, int right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  struct Workspace {
    WordCache cache;
    std::vector<int> ids;       // of the word, merged in place
    std::vector<int> ranks;     // ranks[i]: of the pair ids[i], ids[i+1]
    std::vector<int> products;  // products[i]: what that pair becomes
  };

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

  void encode_word(std::string_view word, Workspace& workspace, std::vector<int>& out) const {
    if (word.empty()) return;
    if (const auto known = workspace.cache.find(word); known != workspace.cache.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      return;
    }
    std::vector<int>& ids = workspace.ids;
    ids.clear();
    if (const auto whole = ignore_merges_ ? vocabulary_.find(word) : std::nullopt) {
      ids.push_back(*whole);
    } else {
      split_characters(word, ids);
      if (ids.size() <= kLongestScanned)
        merge_short(workspace);
      else
        merge_long(ids);
    }
    if (workspace.cache.size() == kMostWords) workspace.cache.clear();
    if (word.size() <= kLongestWord) workspace.cache.emplace(word, ids);
    out.insert(out.end(), ids.begin(), ids.end());
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
      if (const auto id = id_of_character(character, is_first, is_last)) {
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

  std::optional<int> id_of_character(std::string_view character, bool is_first, bool is_last) const {
    if ((!is_first && !prefix_.empty()) || (is_last && !suffix_.empty()))
      return vocabulary_.find(decorated(character, is_first, is_last));
    if (character.size() > 2) return vocabulary_.find(character);
    const auto first = static_cast<unsigned char>(character[0]);
    const std::size_t code =
        character.size() == 1 ? first : (first & 0x1fu) << 6 | (static_cast<unsigned char>(character[1]) & 0x3fu);
    const int id = short_characters_[code];
    return id < 0 ? std::nullopt : std::optional(id);
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

  void merge_short(Workspace& workspace) const {
    std::vector<int>&ids = workspace.ids, &ranks = workspace.ranks, &products = workspace.products;
    const std::size_t count = ids.size();
    if (count < 2) return;
    ranks.resize(count);
    products.resize(count);
    const auto rank_pair = [&](std::size_t i) {
      const auto merge = merges_.find(pair_key(ids[i], ids[i + 1]));
      ranks[i] = merge == merges_.end() ? kNoRank : merge->second.rank;
      if (merge != merges_.end()) products[i] = merge->second.product;
    };
    for (std::size_t i = 0; i + 1 < count; ++i) rank_pair(i);
    for (std::size_t pairs = count - 1; pairs > 0; --pairs) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < pairs; ++i)
        if (ranks[i] < ranks[best]) best = i;
      if (ranks[best] == kNoRank) break;
      ids[best] = products[best];
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(best));
      products.erase(products.begin() + static_cast<std::ptrdiff_t>(best));
      if (best > 0) rank_pair(best - 1);
      if (best + 1 < ids.size()) rank_pair(best);
    }
  }

  void merge_long(std::vector<int>& ids) const {
    struct Candidate {
      int rank;
      std::size_t left;
      int left_id, right_id, product;
      bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    constexpr int kMerged = -1;
    std::vector<std::size_t> before(ids.size()), after(ids.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto consider = [&](std::size_t left, std::size_t right) {
      const auto merge = merges_.find(pair_key(ids[left], ids[right]));
      if (merge != merges_.end()) queue.push({merge->second.rank, left, ids[left], ids[right], merge->second.product});
    };
    for (std::size_t i = 0; i < ids.size(); ++i) {
      before[i] = i - 1;
      after[i] = i + 1;
      if (i + 1 < ids.size()) consider(i, i + 1);
    }
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      const std::size_t left = top.left, right = after[left];
      // An entry is out of date if one of its two symbols has been merged since.
      if (ids[left] != top.left_id || right == ids.size() || ids[right] != top.right_id) continue;
      ids[left] = top.product;
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
  std::array<int, 0x800> short_characters_;          // ids of characters of one or two bytes; -1: none
  std::string unknown_token_, where_;
  std::optional<int> unknown_id_;
  std::string prefix_, suffix_;  // of tokens inside a word, and at its end
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

Vocabulary::Vocabulary(const JsonPlace& place) {
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

std::optional<int> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

PieceEncoder read_model(const JsonPlace& place, const Vocabulary& vocabulary) {
  return [bpe = std::make_shared<const Bpe>(place, vocabulary)](const Pieces& pieces, std::vector<int>& ids) {
    bpe->encode(pieces, ids);
  };
}

}  // namespace braid
