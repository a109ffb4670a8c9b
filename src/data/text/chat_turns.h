// What a conversation consists of, and what it becomes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

namespace braid {

inline constexpr int kIgnoredTarget = -100;

// JSON that only a chat template can write. Shared, because masking copies turns; null: nothing.
using TemplateInput = std::shared_ptr<const nlohmann::ordered_json>;

struct ChatTurn {
  std::string role;  // system, user, assistant or tool; empty: plain text, which is predicted in full
  std::string text;
  bool is_learned = true;  // false: what the assistant says here is context only
  // An object: the message's keys beside role and content (tool_calls, reasoning_content). A message without text has
  // the object's `content`, which is null or empty, or none at all.
  TemplateInput fields{};
};

struct ChatTokens {
  std::vector<int> tokens;
  std::vector<int> targets;  // the tokens to learn, kIgnoredTarget elsewhere
};

}  // namespace braid
