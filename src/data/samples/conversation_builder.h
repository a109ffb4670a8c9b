// Builds the conversation of one sample, from the values that say something about it.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "base/strings.h"
#include "data/samples/conversation.h"
#include "data/samples/sample_pictures.h"
#include "data/shards/sample_spec.h"

namespace braid {

// JSON is passed by reference, never copied: a copy of a value that is nested very deep would overflow the stack.
class ConversationBuilder {
 public:
  explicit ConversationBuilder(const Sample& sample) : sample_(sample), pictures_(sample) {}

  // False, and without effect, if the turns name other pictures.
  bool add_pictures(const FieldValue& value);
  SamplePictures& pictures() { return pictures_; }
  void refuse_sound_and_video_parts() const;
  std::string first_answer(const nlohmann::ordered_json& value);  // of a list; the others are left out
  void use_part(const std::string& name) { used_parts_.push_back(name); }
  // Notes that the conversation has nothing of this key, unless it is null or describes the sample.
  void leave_out_key(const std::string& key, const nlohmann::ordered_json& value);

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
  void leave_out(const std::string& name) {
    if (!contains(conversation_.unused, name)) conversation_.unused.push_back(name);
  }
  void refuse_other_tags() const;
  std::size_t places_so_far() const;  // of pictures, in the texts
  void add_missing_tags(std::size_t places);
  void add_turn(const nlohmann::ordered_json& turn);
  std::string joined(const nlohmann::ordered_json& fragments);

  const Sample& sample_;
  Conversation conversation_;
  SamplePictures pictures_;
  std::vector<std::string> used_parts_{};
  bool has_caption_ = false;
};

}  // namespace braid
