// Renders the chat template of a tokenizer: Jinja, as far as published templates use it, without access to anything but
// the variables it is given. Steps, memory and depth are bounded, so that a hostile template ends with an error.
// Supported: if, for (with a condition, else, loop.*, break, continue), set (also of a namespace's items, and as a
// block), macros and call blocks, the operators of Jinja, and the filters, tests, methods and functions of
// template_builtins.cpp and template_filters.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>

#include "data/text/template_value.h"

namespace braid {

// The origin of texts in a field of a message, and back.
inline int source_of(int message, std::string_view field) { return 2 * message + (field == "content" ? 0 : 1); }
inline int message_of(int source) { return source / 2; }

std::tm local_time();

class ChatTemplate {
 public:
  // `name` is for messages, `now` the time of strftime_now. DataError if the template is invalid or uses what is not
  // supported.
  ChatTemplate(std::string_view source, std::string name, const std::tm& now = local_time());

  // `variables` is an object: messages, bos_token, add_generation_prompt and so on. DataError with the line if the
  // template fails or refuses them.
  std::string render(const nlohmann::ordered_json& variables) const;
  // The same, with at most `steps`, which become fewer: they bound several renderings together. The texts of a message,
  // except for its role, have source_of() as their origin.
  TemplateText render(const nlohmann::ordered_json& variables, std::int64_t& steps) const {
    return render_(variables, steps);
  }

 private:
  std::function<TemplateText(const nlohmann::ordered_json& variables, std::int64_t& steps)> render_;
};

}  // namespace braid
