// What every kind of tokenizer can do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

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

}  // namespace braid
