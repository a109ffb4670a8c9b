#include <sentencepiece_processor.h>

#include "base/error.h"
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_steps.h"

namespace braid {
namespace {

class SentencePieceCodec : public TokenCodec {
 public:
  SentencePieceCodec(std::string_view bytes, const std::string& name) {
    const auto status = model_.LoadFromSerializedProto(bytes);
    if (!status.ok()) throw DataError(fmt::format("{}: not a sentencepiece model: {}", name, status.ToString()));
  }

  std::vector<int> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    const auto status = model_.Encode(text, &ids);
    if (!status.ok()) throw DataError(fmt::format("sentencepiece cannot encode a text: {}", status.ToString()));
    if (add_special && model_.bos_id() >= 0) ids.insert(ids.begin(), model_.bos_id());
    return ids;
  }

  std::string decode(const std::vector<int>& ids, bool skip_special) const override {
    std::vector<int> shown;
    for (const int id : ids) {
      if (id < 0 || id >= vocab_size())
        throw DataError(fmt::format("no token has the id {}; ids are below {}", id, vocab_size()));
      if (!skip_special || !model_.IsControl(id)) shown.push_back(id);
    }
    std::string text;
    const auto status = model_.Decode(shown, &text);
    if (!status.ok()) throw DataError(fmt::format("sentencepiece cannot decode tokens: {}", status.ToString()));
    return text;
  }

  // The library answers the id of <unk> for unknown tokens.
  std::optional<int> find(std::string_view token) const override {
    const int id = model_.PieceToId(token);
    return id >= 0 && id < vocab_size() && model_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }

  std::optional<std::string> token(int id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(model_.IdToPiece(id)) : std::nullopt;
  }

  std::string bytes(int id) const override { return bytes_of_piece(model_.IdToPiece(id)); }
  bool is_special(int id) const override { return model_.IsControl(id); }

  int vocab_size() const override { return model_.GetPieceSize(); }

 private:
  sentencepiece::SentencePieceProcessor model_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view bytes, const std::string& name) {
  return std::make_unique<SentencePieceCodec>(bytes, name);
}

}  // namespace braid
