// Renders the chat template of a tokenizer: Jinja, as far as published templates use it, without access to anything but
// the variables it is given. Steps, memory and depth are bounded, so that a hostile template ends with an error.
// Supported: if, for (with a condition, else, loop.*, break, continue), set (also of a namespace's items, and as a
// block), macros and call blocks, the operators of Jinja, and the filters, tests, methods and functions of
// template_builtins.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// A text, and which of its bytes are those of a message: what the masks of a conversation follow from. Operations that
// cut and join texts keep the origins; those that write other characters lose them.
struct TemplateText {
  struct Origin {
    std::size_t begin = 0, end = 0;
    int source = 0;
  };
  std::string text{};
  std::vector<Origin> origins{};  // in order, without overlap; neighbours of one source are joined

  void append(const TemplateText& other);
  TemplateText part(std::size_t begin, std::size_t size) const;
  TemplateText part(std::string_view view) const;  // `view` lies in the text
};

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

// Python's methods of str. Views lie in the given text.
std::vector<std::string_view> characters_of(std::string_view text);

// str.strip(characters); without characters: white space.
std::string_view strip_text(std::string_view text, const std::string* characters, bool left, bool right);

// The result has as many bytes. DataError for upper case beyond ASCII, and for the few other letters that cannot be
// changed in their place.
std::string upper_text(std::string text);
std::string lower_text(std::string_view text);
std::string title_text(std::string_view text);
std::string capitalize_text(std::string_view text);

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most);
std::string replace_text(std::string_view text, std::string_view old, std::string_view with);
// str.split(separator, most); without separator: at white space. A negative `most` means all.
std::vector<std::string_view> split_text(std::string_view text, const std::string* separator, std::int64_t most);
std::vector<std::string_view> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most);

}  // namespace braid
