#include "base/error.h"
#include "data/text/sentencepiece_codec.h"

namespace braid {

std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view, const std::string& name) {
  throw ConfigError({"a sentencepiece model needs the sentencepiece library, which this build lacks", name,
                     "install libsentencepiece-dev and build again"});
}

}  // namespace braid
