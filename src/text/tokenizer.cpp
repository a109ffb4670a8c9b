#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

constexpr std::size_t kShownTokens = 20;

}  // namespace

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

int Tokenizer::id_of(std::string_view token) const {
  if (const auto id = codec_->find(token)) return *id;
  std::vector<std::string> special = codec_->special_tokens();
  std::string fix = "special tokens: ";
  if (const auto similar = nearest(token, special)) fix = fmt::format("did you mean {}? ", in_quotes(*similar)) + fix;
  const std::size_t count = special.size();
  special.resize(std::min(count, kShownTokens));
  fix += count == 0 ? "none" : fmt::format("{}", fmt::join(special, " "));
  if (count > kShownTokens) fix += fmt::format(" and {} more", count - kShownTokens);
  throw ConfigError({fmt::format("the tokenizer has no token {}", in_quotes(token)), where_, fix});
}

}  // namespace braid
