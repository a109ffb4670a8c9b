#include "data/text/tokenizer.h"

#include <algorithm>

#include "base/utf8.h"

namespace braid {

Tokenizer::Tokenizer(std::unique_ptr<TokenCodec> codec, TokenizerSettings settings, std::string where,
                     std::string fingerprint)
    : codec_(std::move(codec)),
      settings_(std::move(settings)),
      where_(std::move(where)),
      fingerprint_(std::move(fingerprint)) {}

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
  return is_utf8(text) ? codec_->encode(text, add_special) : codec_->encode(with_valid_utf8(text), add_special);
}

std::string Tokenizer::decode(const std::vector<int>& ids, bool skip_special) const {
  return codec_->decode(ids, skip_special);
}

bool Tokenizer::is_stop(int id) const {
  const std::vector<int>& ids = settings_.stop_ids;
  return std::find(ids.begin(), ids.end(), id) != ids.end() || (settings_.eos && find(*settings_.eos) == id);
}

}  // namespace braid
