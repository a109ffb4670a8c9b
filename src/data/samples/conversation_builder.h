// Builds the conversation of one sample, from the values that say something about it; and what the names of its parts
// and the keys of its JSON say about them.
#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "data/samples/token_sequence.h"
#include "data/shards/data_set.h"

namespace braid {

// Passed by reference, never copied: a copy of a value that is nested very deep would overflow the stack.
using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

// DataError if the key is one of sound or video, and has a value.
void refuse_sound_or_video(const std::string& key, const json& value);

// The first of these keys that an object has with a value; null if it has none.
const json* find_any(const json& object, std::initializer_list<const char*> keys);
// The value in an object that lists pictures, under one of the usual keys; null if there is none. An empty list says
// that there are no pictures, an empty text nothing.
const json* find_picture_list(const json& object);
// A string, or a number as text. DataError for anything else, which `what` names.
std::string text_of(const json& value, const char* what);

class ConversationBuilder {
 public:
  explicit ConversationBuilder(const Sample& sample) : sample_(sample) {}

  void refuse_sound_and_video_parts() const;
  std::string first_answer(const json& value);  // of a list; the others are left out
  void use_part(const std::string& name) { used_parts_.push_back(name); }
  // Notes that the conversation has nothing of this key, unless it is null or describes the sample.
  void leave_out_key(const std::string& key, const json& value);

  void say(std::string role, std::string text) { conversation_.turns.push_back({std::move(role), std::move(text)}); }
  void add_turns(const json& turns);
  void add_tools(const json& tools);        // a list, or a text with one
  void add_sequence(const json& sequence);  // texts and pictures in turn, as plain text
  void add_answer(std::string question, std::string answer);
  void add_caption(std::string caption);  // of pictures, which may be added later
  void add_choices(const std::string& question, const json& choices, std::int64_t right);

  // Turns name the pictures, or a list beside the turns does, or they are all parts that are pictures, in the order of
  // the shard. Whatever names a picture that the conversation does not get is refused, so that no picture meets
  // another's text.
  bool turns_name_pictures() const { return !names_.empty(); }
  bool has_pictures() const { return !conversation_.pictures.empty() || turns_name_pictures(); }
  // A part, or a name or a list of names of parts. False, and without effect, if the turns name other pictures.
  bool add_pictures(const SamplePart* part);
  bool add_pictures(const json& list);
  bool add_pictures_of(const FieldValue& value);
  void add_all_pictures();  // unless turns have names or lists

  // Pictures without a tag come first, in the first turn of the user.
  Conversation finish();

 private:
  // A fragment of a turn that stands for a picture whose part it does not name. They have the pictures in turn.
  struct Unnamed {
    std::size_t place = 0;  // of pictures in the texts before it
    std::string index{};    // as JSON; empty if it has none
    std::string key{};      // another key, which may say which picture it is
  };

  void leave_out(const std::string& name) {
    if (!contains(conversation_.unused, name)) conversation_.unused.push_back(name);
  }
  std::size_t places_so_far() const;  // of pictures, in the texts
  void add_turn(const json& turn);
  std::string text_of_fragments(const json& fragments);
  void add_picture_fragment(const json& fragment, std::size_t place);
  std::string add_turn_list(const json& list, std::size_t named, std::string_view text);
  void add_part(const SamplePart& part);
  void add_named(const std::vector<std::string>& names);
  bool is_same_list(const json& list) const;
  void check_unnamed(std::size_t places) const;

  const Sample& sample_;
  Conversation conversation_;
  std::vector<std::string> used_parts_{};
  std::vector<std::string> names_{};  // of pictures, in turns, which then name all
  std::vector<Unnamed> unnamed_{};
  bool has_caption_ = false, turns_have_lists_ = false, is_listed_ = false;
};

}  // namespace braid
