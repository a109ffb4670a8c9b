// A tokenizer as a model's folder contains it: the tokens, the names of special ones, and the chat template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "base/error.h"

namespace braid {

// Refuses nesting deeper than 64, since reading, copying and freeing JSON are recursive. `name` is for messages.
nlohmann::json parse_json_file(std::string_view text, const std::string& name);

// A value inside a JSON file from elsewhere, with its path for messages. Every mistake is a DataError that names the
// place, such as "tokenizer.json: model.merges[3] should be a string".
class JsonPlace {
 public:
  JsonPlace(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const;

  JsonPlace operator[](const char* key) const;    // of an object; null if it has no such key
  JsonPlace operator[](std::size_t index) const;  // of an array that has it
  std::vector<JsonPlace> elements() const;        // of an array

  const std::string& string() const;
  std::string string_or(const std::string& if_null) const { return is_null() ? if_null : string(); }
  bool boolean_or(bool if_null) const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::string type() const { return (*this)["type"].string(); }

  [[noreturn]] void refuse(const std::string& what) const { throw DataError(path_ + " " + what); }
  [[noreturn]] void expected(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

// What every kind of tokenizer can do.
class TokenCodec {
 public:
  virtual ~TokenCodec() = default;

  // `text` is valid UTF-8. May be called by several threads at a time.
  virtual std::vector<int> encode(std::string_view text, bool add_special) const = 0;
  // DataError for an id without a token.
  virtual std::string decode(const std::vector<int>& ids, bool skip_special) const = 0;

  virtual std::optional<int> find(std::string_view token) const = 0;
  virtual std::optional<std::string> token(int id) const = 0;
  virtual std::string bytes(int id) const = 0;  // of the text that a token stands for, if nothing normalised it
  virtual bool is_special(int id) const = 0;    // whether it marks the structure of a text
  virtual int vocab_size() const = 0;           // one more than the largest id
};

// A Hugging Face tokenizer.json with a BPE model: added tokens, normalizer, pre-tokenizer, model, post-processor and
// decoder, with the ids of the `tokenizers` library. `name` is for messages. `config` is the tokenizer_config.json
// beside it, which may add tokens; null: there is none. DataError names what is wrong or not supported. "truncation"
// and "padding" are ignored.
std::unique_ptr<TokenCodec> read_hf_codec(std::string_view text, const std::string& name,
                                          const JsonPlace* config = nullptr);
// A sentencepiece .model file, by its own library. Without the library, a ConfigError. With add_special, a text begins
// with the model's BOS token if it has one.
std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view bytes, const std::string& name);

// From tokenizer_config.json; nothing if the folder does not say.
struct TokenizerSettings {
  std::optional<std::string> bos{}, eos{}, pad{}, unk{};
  std::optional<std::string> chat_template{};  // Jinja
  std::optional<std::string> tool_template{};  // for conversations with tools, if there is another for them
  std::vector<int> stop_ids{};                 // eos_token_id of generation_config.json
};

class Tokenizer {
 public:
  Tokenizer(std::unique_ptr<TokenCodec> codec, TokenizerSettings settings, std::string where,
            std::string fingerprint = {})
      : codec_(std::move(codec)), settings_(std::move(settings)), where_(std::move(where)),
        fingerprint_(std::move(fingerprint)) {}

  // Invalid UTF-8 is replaced as Python's errors="replace" does. May be called by several threads at a time.
  std::vector<int> encode(std::string_view text, bool add_special = false) const;
  // DataError for an id without a token.
  std::string decode(const std::vector<int>& ids, bool skip_special = false) const {
    return codec_->decode(ids, skip_special);
  }

  std::optional<int> find(std::string_view token) const { return codec_->find(token); }
  std::optional<std::string> token(int id) const { return codec_->token(id); }
  std::string bytes(int id) const { return codec_->bytes(id); }
  bool is_special(int id) const { return codec_->is_special(id); }
  bool is_stop(int id) const;                              // whether a model that writes it has ended its answer
  int vocab_size() const { return codec_->vocab_size(); }  // one more than the largest id
  const TokenizerSettings& settings() const { return settings_; }
  const std::string& where() const { return where_; }              // for messages
  const std::string& fingerprint() const { return fingerprint_; }  // of the files' contents

 private:
  std::unique_ptr<TokenCodec> codec_;
  TokenizerSettings settings_;
  std::string where_, fingerprint_;
};

// A tokenizer.json, a sentencepiece .model, or a folder with one of them (the .model is named tokenizer.model).
// ConfigError if there is none, DataError if a file is invalid.
Tokenizer load_tokenizer(const std::string& path);

// The tokens of a plain text. With `append_eod`, it ends with the tokenizer's EOS token; ConfigError if it has none.
std::vector<int> encode_plain_text(const Tokenizer& tokenizer, std::string_view text, bool append_eod);

// The parts of a tokenizer.json: what changes a text before it is divided, what divides it into the pieces that are
// tokenized separately, which special tokens stand around the text, and what makes text from tokens. Each is
// read from its part of the file, where null means that nothing happens. DataError for unknown types.
struct Piece {
  std::size_t begin = 0, end = 0;  // in Pieces::text
  bool is_first = false;           // whether it begins where the user's text begins
};

struct Pieces {
  std::string text;         // valid UTF-8
  std::vector<Piece> list;  // none is empty

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

template <class Value>
using Steps = std::vector<std::function<void(Value&)>>;

template <class Value>
void apply(const Steps<Value>& steps, Value& value) {
  for (const auto& step : steps) step(value);
}

Steps<std::string> read_normalizer(const JsonPlace& place);
Steps<Pieces> read_pre_tokenizer(const JsonPlace& place);

struct SpecialFrame {
  std::vector<int> before, after;
};
// The "post_processor". DataError for templates that repeat the text.
SpecialFrame read_post_processor(const JsonPlace& place);

struct TokenDecoder {
  Steps<std::vector<std::string>> steps;
  std::string separator;
  bool has_byte_level = false;

  std::string decode(std::vector<std::string> tokens) const;
  std::string bytes(const std::string& token) const;  // of one token, also of part of a character
};
// Null: tokens are joined by spaces.
TokenDecoder read_decoder(const JsonPlace& place);

// The bytes that a sentencepiece token stands for: "▁" is a space, "<0x41>" a byte.
std::string bytes_of_piece(const std::string& token);

}  // namespace braid
