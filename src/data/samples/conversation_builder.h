// Builds the conversation of one sample, from the values that say something about it.
#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "data/samples/conversation.h"
#include "data/shards/sample_spec.h"

namespace braid {

// What the names of a sample's parts and keys say about them.
std::string last_extension(std::string_view part);  // in lower case
bool is_picture_part(std::string_view part);
// Identifies or describes a sample or a turn; a conversation is the same without it.
bool is_metadata_key(std::string_view key);

// The first of these keys that an object has with a value; null if it has none.
const nlohmann::ordered_json* find_any(const nlohmann::ordered_json& object, std::initializer_list<const char*> keys);
// A string, or a number as text. DataError for anything else, which `what` names.
std::string text_of(const nlohmann::ordered_json& value, const char* what);

// JSON is passed by reference, never copied: a copy of a value that is nested very deep would overflow the stack.
class ConversationBuilder {
 public:
  explicit ConversationBuilder(const Sample& sample) : sample_(sample) {}

  void add_pictures(const FieldValue& value);
  void add_named_pictures(const nlohmann::ordered_json& names);  // of parts: one, or a list
  void add_picture_parts();                                      // all that the sample has
  bool has_pictures() const { return !conversation_.pictures.empty() || names_pictures(); }
  bool names_pictures() const { return !fragment_names_.empty(); }  // in fragments: the sample has exactly those
  void refuse_sound_and_video_parts() const;
  std::string first_answer(const nlohmann::ordered_json& value);  // of a list; the others are left out
  void use_part(const std::string& name) { used_parts_.push_back(name); }
  // Notes that the conversation has nothing of this key, unless its value says nothing. DataError for sound and video.
  void leave_out_key(const std::string& key, const nlohmann::ordered_json& value = true);

  void say(std::string role, std::string text) { conversation_.turns.push_back({std::move(role), std::move(text)}); }
  void add_turns(const nlohmann::ordered_json& turns);
  void add_tools(const nlohmann::ordered_json& tools);        // a list, or a text with one
  void add_sequence(const nlohmann::ordered_json& sequence);  // texts and pictures in turn, as plain text
  void add_answer(std::string question, std::string answer);
  void add_caption(std::string caption);  // of pictures, which may be added later
  void add_choices(const std::string& question, const nlohmann::ordered_json& choices, std::int64_t right);

  // Pictures without a tag come first, in the first turn of the user.
  Conversation finish();

 private:
  void add_part(const SamplePart& part) {
    use_part(part.name);
    conversation_.pictures.push_back({part.name, part.bytes, part.offset});
  }
  void add_parts_named(const std::vector<std::string>& names);
  void leave_out(const std::string& name) {
    if (!contains(conversation_.unused, name)) conversation_.unused.push_back(name);
  }
  void refuse_other_tags() const;
  void add_missing_tags();
  void add_turn(const nlohmann::ordered_json& turn);
  std::string tags_of_turn(const nlohmann::ordered_json& pictures, std::size_t fragments, const std::string& text);
  std::string joined(const nlohmann::ordered_json& fragments);
  void add_picture_fragment(const nlohmann::ordered_json& fragment, const nlohmann::ordered_json* name);

  const Sample& sample_;
  Conversation conversation_;
  std::vector<std::string> used_parts_{}, fragment_names_{};
  int picture_fragments_ = 0;
  std::string identifier_{};  // of a picture fragment without a name
  bool has_caption_ = false;
};

}  // namespace braid
