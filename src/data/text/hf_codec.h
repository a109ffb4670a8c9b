// A Hugging Face tokenizer.json with a BPE model: added tokens, normalizer, pre-tokenizer, model, post-processor and
// decoder, with the ids of the `tokenizers` library.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/text/json_place.h"
#include "data/text/token_codec.h"

namespace braid {

// `name` is for messages. `config` is the tokenizer_config.json beside it, which may add tokens. DataError names what
// is wrong or not supported. "truncation" and "padding" are ignored.
std::unique_ptr<TokenCodec> read_hf_codec(std::string_view text, const std::string& name,
                                          const std::optional<JsonPlace>& config = std::nullopt);

}  // namespace braid
