// What a conversation consists of, and what it becomes.
#pragma once

#include <string>
#include <vector>

namespace braid {

inline constexpr int kIgnoredTarget = -100;

struct ChatTurn {
  std::string role;  // system, user, assistant or tool
  std::string text;
};

struct ChatTokens {
  std::vector<int> tokens;
  std::vector<int> targets;  // the tokens to learn, kIgnoredTarget elsewhere
};

}  // namespace braid
