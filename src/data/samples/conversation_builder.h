// A conversation as it is put together from the values of a sample. Parts and keys have many names in data sets; what
// they say about a part or a key is decided here.
#pragma once

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "data/samples/token_sequence.h"

namespace braid {

// Passed by reference, never copied: a copy of a value that is nested very deep would overflow the stack.
using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

inline bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The extension in lower case.
inline std::string last_extension(std::string_view part) {
  std::string extension(part.substr(part.rfind('.') + 1));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

using Words = std::initializer_list<std::string_view>;
inline const Words kPictures = {"jpg", "jpeg", "png", "webp"};
inline const Words kUnreadPictures = {"gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2",
                                      "jxl", "ppm", "pgm", "svg",  "ico",  "apng", "jfif"};
inline const Words kSoundAndVideo = {"wav",  "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "wma",
                                     "aiff", "aif", "amr",  "mp4", "m4v", "mov",  "avi", "mkv", "webm",
                                     "weba", "mpg", "mpeg", "wmv", "flv", "3gp",  "ogv"};

inline bool is_picture(const SamplePart& part) { return is_one_of(last_extension(part.name), kPictures); }

// The first of these keys that an object has with a value; null if it has none.
inline const json* find_any(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !found->is_null()) return &*found;
  return nullptr;
}

// Null if none of the keys has a value, or only empty ones.
inline const json* find_name(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const json* value = find_any(object, {key}); value && !is_empty_value(*value)) return value;
  return nullptr;
}

// The value in an object that lists pictures, under one of the usual keys; null if there is none. An empty list says
// that there are no pictures, an empty text nothing.
inline const json* find_picture_list(const json& object) {
  if (const json* list = find_name(object, {"images", "image"})) return list;
  const json* list = find_any(object, {"images", "image"});
  return list && list->is_array() ? list : nullptr;
}

// A string, or a number as text. DataError for anything else, which `what` names.
inline std::string text_of(const json& value, const char* what) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  throw DataError(fmt::format("{} is not a text", what));
}

// DataError if the key is one of sound or video, and has a value.
inline void refuse_sound_or_video(const std::string& key, const json& value) {
  if (!is_empty_value(value) && is_one_of(key, {"video", "videos", "video_path", "video_file", "video_url", "audio",
                                                "audios", "audio_path", "audio_file", "audio_url", "sound", "speech"}))
    throw DataError(fmt::format("its {} is sound or video, which no encoder takes from a data set", in_quotes(key)));
}

inline std::string role_of(const std::string& word) {
  if (is_one_of(word, {"human", "user"})) return "user";
  if (is_one_of(word, {"gpt", "assistant", "model"})) return "assistant";
  if (is_one_of(word, {"system", "tool", "developer"})) return word;
  throw DataError(fmt::format("a turn is of the unknown role {}", in_quotes(word)));
}

inline constexpr int kDeepest = 32;  // of JSON for a chat template, which walks it recursively

// DataError if a chat template could not write the value as Python would.
inline void check_template_value(const json& value, const std::string& key, int depth = 0) {
  if (depth > kDeepest) throw DataError(fmt::format("its {} are nested too deep", in_quotes(key)));
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    throw DataError(fmt::format("a number in its {} has more than 63 bits", in_quotes(key)));
  if (value.is_structured())
    for (const json& item : value) check_template_value(item, key, depth + 1);
}

// Trainers have several names for the weight of a turn in the loss.
inline const Words kWeightKeys = {"weight", "train", "loss", "loss_mask"};

inline bool is_learned(const json& turn) {
  if (find_any(turn, {"mask"}))
    throw DataError("a turn has the key 'mask', which trainers read in opposite ways; use weight: 0 or 1");
  bool is_learned = true;
  for (const std::string_view key : kWeightKeys) {
    const json* weight = find_any(turn, {key.data()});
    if (!weight || *weight == 1 || *weight == true) continue;
    if (*weight != 0 && *weight != false)
      throw DataError(fmt::format("a turn has the {} {}; only 0 (not learned) and 1 are supported", key,
                                  weight->is_structured() ? weight->type_name() : weight->dump()));
    is_learned = false;
  }
  return is_learned;
}

// The keys of a turn that are for the chat template; `used` are the values of the others.
inline json fields_of(const json& turn, std::initializer_list<const json*> used) {
  json fields = json::object();
  for (const auto& [key, value] : turn.items()) {
    const bool is_used = std::find(used.begin(), used.end(), &value) != used.end();
    if (is_used || is_one_of(key, kWeightKeys) || value.is_null()) continue;
    refuse_sound_or_video(key, value);
    check_template_value(value, key);
    fields[key] = value;
  }
  return fields;
}

inline bool says_anything(const json& fields) {
  for (const auto& [key, value] : fields.items())
    if (says_something(key) && !is_empty_value(value)) return true;
  return false;
}

inline std::size_t count_tags(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(kPictureTag); at != text.npos; at = text.find(kPictureTag, at + kPictureTag.size()))
    ++count;
  return count;
}

// Tags for pictures whose place the texts do not say.
inline std::string tags(std::size_t count) {
  std::string tags;
  for (std::size_t i = 0; i < count; ++i) tags += std::string(kPictureTag) + "\n";
  return tags;
}

inline std::string last_of_path(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Null if there are none or several.
inline const SamplePart* only_part(const Sample& sample, const auto& condition) {
  const auto found = std::ranges::find_if(sample.parts, condition);
  if (found == sample.parts.end() || std::any_of(found + 1, sample.parts.end(), condition)) return nullptr;
  return &*found;
}

// "img/0001.left.png" is part "left.png" of sample 0001. Otherwise the name is that of a file before it was packed,
// whose part may be called "png" only.
inline const SamplePart* part_named(const Sample& sample, const std::string& name) {
  const std::string file = last_of_path(name), rest = file.substr(file.find('.') + 1);
  for (const std::string& spelling : {name, file})
    if (const SamplePart* part = sample.find(spelling)) return part;
  const bool has_key = file.starts_with(last_of_path(sample.key) + "."), has_stem = rest.find('.') != rest.npos;
  if (const SamplePart* part = sample.find(rest); part && (has_key || has_stem)) return part;
  const std::string ending = last_extension(file);
  const SamplePart* part =
      only_part(sample, [&](const SamplePart& other) { return last_extension(other.name) == ending; });
  return part && part->name.find('.') == part->name.npos ? part : nullptr;
}

// {"url": "a.png"} and {"path": "a.png"} are names, too.
inline std::string name_in(const json& value) {
  const json* inner = value.is_object() ? find_name(value, {"url", "path", "file_name"}) : nullptr;
  std::string name = text_of(inner ? *inner : value, "the name of a picture");
  if (name.starts_with("data:")) throw DataError("a picture is in the JSON, as a data URL; store it as a part");
  return name;
}

inline std::vector<std::string> names_in(const json& list) {
  if (list.is_string() || list.is_object()) return {name_in(list)};
  if (!list.is_array()) throw DataError("the field of pictures is neither a part nor a list of names");
  return vector_of<std::string>(list, name_in);
}

class ConversationBuilder {
 public:
  explicit ConversationBuilder(const Sample& sample) : sample_(sample) {}

  void refuse_sound_and_video_parts() const {
    for (const SamplePart& part : sample_.parts)
      if (is_one_of(last_extension(part.name), kSoundAndVideo))
        throw DataError(
            fmt::format("its part {} is sound or video, which no encoder takes from a data set", in_quotes(part.name)));
  }

  // --- what the sample has and the conversation does not

  void use_part(const std::string& name) { used_parts_.push_back(name); }

  // Notes that the conversation has nothing of this key, unless it is null or describes the sample.
  void leave_out_key(const std::string& key, const json& value) {
    const bool has_no_tools = key == "tools" && is_empty_value(value);
    if (!value.is_null() && !is_metadata_key(key) && !has_no_tools) leave_out(key);
  }

  // Of a list; the others are noted as left out.
  std::string first_answer(const json& value) {
    if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
    if (value.is_array() && value.size() > 1) leave_out("answers after the first");
    return text_of(value.is_array() ? value.front() : value, "the answer");
  }

  // --- texts

  void say(std::string role, std::string text) { conversation_.turns.push_back({std::move(role), std::move(text)}); }

  void add_turns(const json& turns) {
    if (!turns.is_array()) throw DataError("the conversation is not a list");
    for (const json& turn : turns) add_turn(turn);
  }

  // A list, or a text with one.
  void add_tools(const json& tools) {
    if (tools.is_string()) {
      const json parsed = json::parse(tools.get<std::string>(), nullptr, /*allow_exceptions=*/false);
      if (!parsed.is_array()) throw DataError("its tools are a text that is not a JSON list");
      return add_tools(parsed);
    }
    if (!tools.is_array() || !std::ranges::all_of(tools, [](const json& tool) { return tool.is_object(); }))
      throw DataError("its tools are not a list of objects");
    check_template_value(tools, "tools");
    conversation_.tools = std::make_shared<const json>(tools);
  }

  // Texts and pictures in turn become a plain text.
  void add_sequence(const json& sequence) {
    if (!sequence.is_array()) throw DataError("the sequence is not a list");
    say("", text_of_fragments(sequence));
  }

  void add_answer(std::string question, std::string answer) {
    say("user", std::move(question));
    say("assistant", std::move(answer));
  }

  // The pictures may be added later.
  void add_caption(std::string caption) {
    has_caption_ = true;
    add_answer("", std::move(caption));
  }

  void add_choices(const std::string& question, const json& choices, std::int64_t right) {
    if (!choices.is_array() || right < 0 || right >= std::ssize(choices) || choices.size() > 26)
      throw DataError("the choices are not a list of at most 26 that has the right one");
    std::string asked = question + "\n";
    for (std::size_t i = 0; i < choices.size(); ++i)
      asked += fmt::format("{}. {}\n", static_cast<char>('A' + i), text_of(choices[i], "a choice"));
    add_answer(asked + "Answer with the option's letter from the given choices directly.",
               std::string(1, static_cast<char>('A' + right)));
  }

  // --- pictures
  //
  // Turns name the pictures, or a list beside the turns does, or they are all parts that are pictures, in the order of
  // the shard. Whatever names a picture that the conversation does not get is refused, so that no picture meets
  // another's text.

  bool turns_name_pictures() const { return !names_.empty(); }
  bool has_pictures() const { return !conversation_.pictures.empty() || turns_name_pictures(); }

  // A part, or a name or a list of names of parts. False, and without effect, if the turns name other pictures.
  bool add_pictures(const SamplePart* part) {
    if (turns_name_pictures()) return is_same_list(part->name);
    conversation_.pictures.push_back(*part);
    return true;
  }
  bool add_pictures(const json& list) {
    if (turns_name_pictures()) return is_same_list(list);
    is_listed_ = true;
    add_named(names_in(list));
    return true;
  }

  // Unless turns have names or lists.
  void add_all_pictures() {
    if (turns_name_pictures() || turns_have_lists_) return;
    for (const SamplePart& part : sample_.parts) {
      if (is_one_of(last_extension(part.name), kUnreadPictures))
        throw DataError(fmt::format(
            "its part {} is a picture in a format that Braid does not read; convert it to JPEG, PNG or WebP",
            in_quotes(part.name)));
      if (is_picture(part)) conversation_.pictures.push_back(part);
    }
  }

  // Pictures without a tag come first, in the first turn of the user.
  Conversation finish() {
    std::vector<ChatTurn>& turns = conversation_.turns;
    const std::vector<SamplePart>& pictures = conversation_.pictures;
    if (turns.empty()) throw DataError(fmt::format("the sample has neither turns nor text; {}", part_names(sample_)));
    // Such a tag is the place of a video or a sound. An answer, a tool or a plain text may speak of HTML.
    for (const ChatTurn& turn : turns)
      for (const char* tag : {"<video>", "<audio>"})
        if ((turn.role == "user" || turn.role == "system") && turn.text.find(tag) != turn.text.npos)
          throw DataError(fmt::format("its text has {}, but no encoder takes sound or video from a data set", tag));
    if (has_caption_ && !has_pictures())
      throw DataError(fmt::format("its caption has no picture; {}", part_names(sample_)));
    const std::size_t places = places_so_far();
    add_named(names_);
    check_unnamed(places);
    for (const ChatTurn& turn : turns)
      if (turn.role == "assistant" && count_tags(turn.text) > 0) throw DataError("an answer has a picture");
    if (places > pictures.size())
      throw DataError(fmt::format("its texts have {} times {}, but there {} {}", places, kPictureTag,
                                  pictures.size() == 1 ? "is" : "are", counted(std::ssize(pictures), "picture")));
    const auto asked =
        std::ranges::find_if(turns, [](const ChatTurn& turn) { return turn.role == "user" || turn.role.empty(); });
    if (asked != turns.end()) asked->text.insert(0, tags(pictures.size() - places));
    for (const SamplePart& part : sample_.parts)
      if (!contains(used_parts_, part.name) &&
          std::ranges::find(pictures, part.name, &SamplePart::name) == pictures.end())
        leave_out("part " + part.name);
    for (const std::string& name : sample_.replaced) leave_out(fmt::format("part {} before another {}", name, name));
    return std::move(conversation_);
  }

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

  // How many places of pictures the texts have.
  std::size_t places_so_far() const {
    return sum_of<std::size_t>(conversation_.turns, [](const ChatTurn& turn) { return count_tags(turn.text); });
  }

  void add_turn(const json& turn) {
    if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
    const json* role = find_any(turn, {"role", "from", "sender"});
    const json* said = find_any(turn, {"content", "value", "text", "fragments"});
    const json* pictures = find_picture_list(turn);
    json fields = fields_of(turn, {role, said, pictures});
    if (!role || (!said && !(pictures && !is_empty_value(*pictures)) && !says_anything(fields)))
      throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
    const std::size_t named = names_.size();
    std::string text = !said ? "" : said->is_array() ? text_of_fragments(*said) : text_of(*said, "a turn");
    if (pictures) text.insert(0, add_turn_list(*pictures, named, text));
    say(role_of(text_of(*role, "a role")), std::move(text));
    ChatTurn& last = conversation_.turns.back();
    last.is_learned = is_learned(turn);
    if (fields.empty()) return;
    if (last.text.empty() && (said || turn.contains("content"))) fields["content"] = said ? json("") : json();
    last.fields = std::make_shared<const json>(std::move(fields));
  }

  // The text of a list of texts, and of objects with a text or a picture: {"type": "text", "text": ..}, {"t": "image",
  // "value": ..}.
  std::string text_of_fragments(const json& fragments) {
    std::string text;
    const std::size_t places = places_so_far();
    for (const json& fragment : fragments) {
      if (fragment.is_string()) {
        text += fragment.get<std::string>();
        continue;
      }
      if (!fragment.is_object()) throw DataError("a fragment of a turn is neither a text nor an object");
      const json* kind = find_any(fragment, {"type", "t"});
      const json* said = find_any(fragment, {"value", "text", "content"});
      const json* picture = find_picture_list(fragment);
      const std::string name = kind ? text_of(*kind, "the type of a fragment") : picture ? "image" : "text";
      const bool is_picture = name == "image" || name == "image_url";
      if (picture && said && (!is_picture || !kind) && !is_empty_value(*said))
        throw DataError("a fragment of a turn has both a text and a picture; make them two fragments");
      for (const auto& [key, value] : fragment.items()) {
        refuse_sound_or_video(key, value);
        if (&value != kind && &value != said && !is_picture && !is_empty_value(value) && !is_metadata_key(key))
          leave_out("fragment." + key);
      }
      if (is_picture) {
        add_picture_fragment(fragment, places + count_tags(text));
        text += kPictureTag;
      } else if (name == "text" && said) {
        text += text_of(*said, "a fragment");
      } else {
        throw DataError(fmt::format("a fragment of a turn has the unknown type {}", in_quotes(name)));
      }
    }
    return text;
  }

  void add_picture_fragment(const json& fragment, std::size_t place) {
    if (const json* name = find_name(fragment, {"image", "value", "url", "path", "src", "image_url", "file",
                                                "file_name", "filename", "content"}))
      return names_.push_back(name_in(*name));
    Unnamed& unnamed = unnamed_.emplace_back(Unnamed{.place = place});
    for (const auto& [key, value] : fragment.items()) {
      const bool says_nothing = is_one_of(key, {"type", "t", "text", "alt", "caption", "width", "height", "size",
                                                "format", "mime_type", "media_type", "detail"});
      if (value.is_null() || value == "" || says_nothing) continue;
      if (key == "index" || key == "idx")
        unnamed.index = value.is_primitive() ? value.dump() : value.type_name();
      else
        unnamed.key = key;
    }
  }

  // The list of a turn whose text, with the fragments named since there were `named` names, is `text`. Returns the tags
  // that the text lacks.
  std::string add_turn_list(const json& list, std::size_t named, std::string_view text) {
    const std::vector<std::string> names = names_in(list);
    turns_have_lists_ = true;
    if (names_.size() > named) {
      const auto is_same = [&](const std::string& a, const std::string& b) {
        return a == b || (part_named(sample_, a) && part_named(sample_, a) == part_named(sample_, b));
      };
      if (!std::equal(names_.begin() + named, names_.end(), names.begin(), names.end(), is_same))
        throw DataError("a turn lists other pictures than its fragments name");
      return "";
    }
    names_.insert(names_.end(), names.begin(), names.end());
    const std::size_t places = count_tags(text);
    if (places != 0 && places != names.size())
      throw DataError(fmt::format("a turn lists {}, but its text has {} times {}",
                                  counted(std::ssize(names), "picture"), places, kPictureTag));
    return places == 0 ? tags(names.size()) : "";
  }

  // `names`: all that the sample has. One name and one picture belong together, whatever they are called.
  void add_named(const std::vector<std::string>& names) {
    const bool is_one = std::ranges::all_of(names, [&](const auto& name) { return name == names[0]; });
    const SamplePart* only = is_one ? only_part(sample_, is_picture) : nullptr;
    std::map<const SamplePart*, std::string> name_of;
    for (const std::string& name : names) {
      const SamplePart* named = part_named(sample_, name);
      const SamplePart* part = named ? named : only;
      if (!part)
        throw DataError(fmt::format("there is no part {} for a picture; {}", in_quotes(name), part_names(sample_)));
      const std::string& first = name_of.emplace(part, name).first->second;
      if (first != name)
        throw DataError(fmt::format("its pictures {} and {} would both be its part {}; {}", in_quotes(first),
                                    in_quotes(name), in_quotes(part->name), part_names(sample_)));
      conversation_.pictures.push_back(*part);
    }
  }

  // Whether this list and the turns name the same pictures.
  bool is_same_list(const json& list) const {
    std::set<const SamplePart*> here, there;
    for (const std::string& name : names_) here.insert(part_named(sample_, name));
    for (const std::string& name : names_in(list)) there.insert(part_named(sample_, name));
    return here == there && !there.contains(nullptr);
  }

  // Fragments without a name have the pictures in turn. Refuses those that say they are another one.
  void check_unnamed(std::size_t places) const {
    if (turns_name_pictures() || conversation_.pictures.size() < 2) return;
    const std::string pictures = counted(std::ssize(conversation_.pictures), "picture");
    for (const Unnamed& fragment : unnamed_) {
      if (!fragment.key.empty() && !is_listed_)
        throw DataError(fmt::format("an image fragment has only the key {} to say which of {} it is; name its part",
                                    in_quotes(fragment.key), pictures));
      if (fragment.index.empty()) continue;
      if (fragment.index != fmt::to_string(fragment.place) || places != conversation_.pictures.size())
        throw DataError(
            fmt::format("an image fragment with index {} has place {} (counted from 0) of {} for {}; name the parts",
                        fragment.index, fragment.place, places, pictures));
    }
  }

  const Sample& sample_;
  Conversation conversation_;
  std::vector<std::string> used_parts_{};
  std::vector<std::string> names_{};  // of pictures, in turns, which then name all
  std::vector<Unnamed> unnamed_{};
  bool has_caption_ = false, turns_have_lists_ = false, is_listed_ = false;
};

}  // namespace braid
