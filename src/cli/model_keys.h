#pragma once

#include <fmt/format.h>

#include "base/strings.h"
#include "run/recipe.h"

namespace braid {

// The recipe keys of a provider's model: Llama and hybrid models, RADIO and CLIP have different keys.
class ModelKeys : public YamlWriter {
 public:
  explicit ModelKeys(const std::string& provider) {
    ModelConfig config;
    config.provider = provider;
    section("model", config);
  }
  bool has(const std::string& key) const { return contains(keys_, key); }

 protected:
  bool enter(const std::string& key) override {
    path_.push_back(key);
    return true;
  }
  void leave() override { path_.pop_back(); }
  void line(const std::string& key, const std::string&, const std::string&) override { unset(key.c_str(), ""); }
  void unset(const char* key, const char*) override {
    keys_.push_back(fmt::format("{}.{}", fmt::join(path_, "."), key));
  }

 private:
  std::vector<std::string> path_, keys_;
};

}  // namespace braid
