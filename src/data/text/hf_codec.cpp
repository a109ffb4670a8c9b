#include <nlohmann/json.hpp>

#include <mutex>

#include "base/error.h"
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_steps.h"

namespace braid {
namespace {

// Word caches and buffers. Each call of encode() takes one, so that threads do not wait for each other.
class Workspaces {
 public:
  std::unique_ptr<Bpe::Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Bpe::Workspace>();
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Bpe::Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Bpe::Workspace>> idle_;
};

class HfCodec : public TokenCodec {
 public:
  HfCodec(const JsonPlace& place, const JsonPlace* config)
      : model_(place["model"]),
        normalizer_(place["normalizer"]),
        added_(place["added_tokens"], config, model_.vocabulary(), normalizer_),
        pre_tokenizer_(place["pre_tokenizer"]),
        frame_(read_post_processor(place["post_processor"])),
        decoder_(place["decoder"]) {}

  std::vector<int> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    if (add_special) ids = frame_.before;
    std::unique_ptr<Bpe::Workspace> workspace = workspaces_.take();
    for (const AddedTokens::Part& part : added_.parts_of(text, /*normalized=*/false)) {
      if (part.token)
        ids.push_back(part.token->id);
      else
        encode_gap(text.substr(part.begin, part.end - part.begin), part.begin == 0, *workspace, ids);
    }
    workspaces_.give_back(std::move(workspace));
    if (add_special) ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
    return ids;
  }

  std::string decode(const std::vector<int>& ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    for (const int id : ids) {
      const AddedToken* added = added_.with_id(id);
      if (added && added->special && skip_special) continue;
      if (!added && !model_.vocabulary().has(id))
        throw DataError(fmt::format("no token has the id {}; ids are below {}", id, vocab_size()));
      tokens.push_back(added ? added->searched : model_.vocabulary().token(id));
    }
    return decoder_.decode(std::move(tokens));
  }

  std::optional<int> find(std::string_view token) const override {
    const AddedToken* added = added_.find(token);
    return added ? std::optional(added->id) : model_.vocabulary().find(token);
  }

  std::optional<std::string> token(int id) const override {
    const AddedToken* added = added_.with_id(id);
    if (added) return added->content;
    return model_.vocabulary().has(id) ? std::optional(model_.vocabulary().token(id)) : std::nullopt;
  }

  std::string bytes(int id) const override {
    const AddedToken* added = added_.with_id(id);
    return added ? added->content : decoder_.bytes(model_.vocabulary().token(id));
  }
  bool is_special(int id) const override {
    const AddedToken* added = added_.with_id(id);
    return added && added->special;
  }

  int vocab_size() const override { return added_.end_id(); }

 private:
  // The text between added tokens of the first kind: normalised, then searched for those of the second kind.
  void encode_gap(std::string_view gap, bool is_first, Bpe::Workspace& workspace, std::vector<int>& ids) const {
    std::string normalized(gap);
    if (!normalizer_.changes_nothing()) normalized = normalizer_.apply(std::move(normalized));
    for (const AddedTokens::Part& part : added_.parts_of(normalized, /*normalized=*/true)) {
      if (part.token) {
        ids.push_back(part.token->id);
        continue;
      }
      const bool is_whole = part.begin == 0 && part.end == normalized.size();
      const bool begins_text = is_first && part.begin == 0;
      encode_words(is_whole ? std::move(normalized) : normalized.substr(part.begin, part.end - part.begin), begins_text,
                   workspace, ids);
    }
  }

  void encode_words(std::string text, bool is_first, Bpe::Workspace& workspace, std::vector<int>& ids) const {
    Pieces pieces{std::move(text), {}};
    pieces.list.push_back({0, pieces.text.size(), is_first});
    pre_tokenizer_.apply(pieces);
    ids.reserve(ids.size() + pieces.list.size() + pieces.list.size() / 2);
    for (const Piece& piece : pieces.list) model_.encode(pieces.view(piece), workspace, ids);
  }

  const Bpe model_;
  const Normalizer normalizer_;
  const AddedTokens added_;
  const PreTokenizer pre_tokenizer_;
  const SpecialFrame frame_;
  const Decoder decoder_;
  mutable Workspaces workspaces_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_hf_codec(std::string_view text, const std::string& name, const JsonPlace* config) {
  const nlohmann::json json = parse_json_file(text, name);
  return std::make_unique<HfCodec>(JsonPlace(json, name), config);
}

}  // namespace braid
