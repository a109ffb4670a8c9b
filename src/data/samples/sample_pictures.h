// Which parts of a sample are the pictures of its conversation, and in which order.
//
// Turns name them, or a list beside the turns does, or they are all parts that are pictures, in the order of the shard.
// Whatever names a picture that the conversation does not get is refused, so that no picture meets another's text.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "data/samples/conversation.h"

namespace braid {

std::size_t count_picture_tags(std::string_view text);
std::string picture_tags(std::size_t count);  // for pictures whose place the texts do not say

// The value in an object that lists pictures, under one of the usual keys; null if there is none. An empty list says
// that there are no pictures, an empty text nothing.
const nlohmann::ordered_json* find_picture_list(const nlohmann::ordered_json& object);

class SamplePictures {
 public:
  explicit SamplePictures(const Sample& sample) : sample_(sample) {}

  // A fragment of a turn that stands for a picture; there are `place` places of pictures in the texts before it.
  void add_fragment(const nlohmann::ordered_json& fragment, std::size_t place);
  // The list of a turn whose text, with the fragments named since there were `named` names, is `text`. Returns the tags
  // that the text lacks.
  std::string add_turn_list(const nlohmann::ordered_json& list, std::size_t named, std::string_view text);
  std::size_t named() const { return names_.size(); }  // in turns, which then name all

  void add_part(const SamplePart& part) { pictures_.push_back({part.name, part.bytes, part.offset}); }
  void add_list(const nlohmann::ordered_json& names);  // a name, or a list of names of parts
  void add_all_parts();                                // unless turns have lists
  bool empty() const { return pictures_.empty() && names_.empty(); }
  // Whether this list and the turns name the same pictures.
  bool is_same_list(const nlohmann::ordered_json& list) const;

  // `places`: how many pictures the texts have places for.
  std::vector<Picture> finish(std::size_t places);

 private:
  struct Unnamed {
    std::size_t place = 0;
    std::string index{};  // as JSON; empty if it has none
    std::string key{};    // another key, which may say which picture it is
  };
  void add_named(const std::vector<std::string>& names);
  void check_unnamed(std::size_t places) const;

  const Sample& sample_;
  std::vector<Picture> pictures_{};
  std::vector<std::string> names_{};  // in turns
  std::vector<Unnamed> unnamed_{};    // fragments of turns, which have the pictures in turn
  bool turns_have_lists_ = false, is_listed_ = false;
};

}  // namespace braid
