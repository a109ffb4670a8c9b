// A sentencepiece .model file, by its own library. Without it (no_sentencepiece.cpp) reading one throws a ConfigError.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/text/token_codec.h"

namespace braid {

// `name` is for messages. With add_special, a text begins with the model's BOS token if it has one.
std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view bytes, const std::string& name);

}  // namespace braid
