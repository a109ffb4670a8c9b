// The tokens of a model and their ids, in both directions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/json_place.h"

namespace braid {

class Vocabulary {
 public:
  // {"token": id, ...}. DataError if two tokens have one id, or an id is far beyond the number of tokens.
  explicit Vocabulary(const JsonPlace& place);

  std::optional<int> find(std::string_view token) const;
  bool has(int id) const { return id >= 0 && id < end_id() && is_used_[static_cast<std::size_t>(id)]; }
  const std::string& token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  int end_id() const { return static_cast<int>(tokens_.size()); }  // one more than the largest id
  int count() const { return count_; }

 private:
  std::size_t place_of(std::string_view token) const;

  std::vector<std::string> tokens_;  // by id
  std::vector<bool> is_used_;
  std::vector<int> slots_;  // ids; -1: empty
  int count_ = 0;
};

}  // namespace braid
