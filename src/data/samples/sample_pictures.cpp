#include "data/samples/sample_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "data/samples/sample_keys.h"
#include "data/text/chat.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;

std::string last_of_path(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Null if there are none or several.
template <class Condition>
const SamplePart* only_part(const Sample& sample, const Condition& condition) {
  const auto found = std::find_if(sample.parts.begin(), sample.parts.end(), condition);
  if (found == sample.parts.end() || std::any_of(found + 1, sample.parts.end(), condition)) return nullptr;
  return &*found;
}

// "img/0001.left.png" is part "left.png" of sample 0001. Otherwise the name is that of a file before it was packed,
// whose part may be called "png" only.
const SamplePart* part_named(const Sample& sample, const std::string& name) {
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

// Null if none of the keys has a value, or only empty ones.
const json* find_name(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const json* value = find_any(object, {key}); value && !is_empty_value(*value)) return value;
  return nullptr;
}

// {"url": "a.png"} and {"path": "a.png"} are names, too.
std::string name_in(const json& value) {
  const json* inner = value.is_object() ? find_name(value, {"url", "path", "file_name"}) : nullptr;
  std::string name = text_of(inner ? *inner : value, "the name of a picture");
  if (name.starts_with("data:")) throw DataError("a picture is in the JSON, as a data URL; store it as a part");
  return name;
}

std::vector<std::string> names_in(const json& list) {
  if (list.is_string() || list.is_object()) return {name_in(list)};
  if (!list.is_array()) throw DataError("the field of pictures is neither a part nor a list of names");
  std::vector<std::string> names;
  for (const json& name : list) names.push_back(name_in(name));
  return names;
}

}  // namespace

std::size_t count_picture_tags(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(kPictureTag); at != text.npos; at = text.find(kPictureTag, at + kPictureTag.size()))
    ++count;
  return count;
}

std::string picture_tags(std::size_t count) {
  std::string tags;
  for (std::size_t i = 0; i < count; ++i) tags += std::string(kPictureTag) + "\n";
  return tags;
}

const json* find_picture_list(const json& object) {
  if (const json* list = find_name(object, {"images", "image"})) return list;
  const json* list = find_any(object, {"images", "image"});
  return list && list->is_array() ? list : nullptr;
}

void SamplePictures::add_fragment(const json& fragment, std::size_t place) {
  if (const json* name = find_name(
          fragment, {"image", "value", "url", "path", "src", "image_url", "file", "file_name", "filename", "content"}))
    return names_.push_back(name_in(*name));
  Unnamed unnamed{.place = place};
  for (const auto& [key, value] : fragment.items()) {
    static const std::set<std::string> kSayNothing = {"type",   "t",    "text",   "alt",       "caption",    "width",
                                                      "height", "size", "format", "mime_type", "media_type", "detail"};
    if (value.is_null() || value == "" || kSayNothing.contains(key)) continue;
    if (key == "index" || key == "idx")
      unnamed.index = value.is_primitive() ? value.dump() : value.type_name();
    else
      unnamed.key = key;
  }
  unnamed_.push_back(unnamed);
}

std::string SamplePictures::add_turn_list(const json& list, std::size_t named, std::string_view text) {
  const std::vector<std::string> names = names_in(list);
  turns_have_lists_ = true;
  if (names_.size() > named) {
    const auto is_same = [&](const std::string& a, const std::string& b) {
      return a == b || (part_named(sample_, a) && part_named(sample_, a) == part_named(sample_, b));
    };
    if (!std::equal(names_.begin() + static_cast<std::ptrdiff_t>(named), names_.end(), names.begin(), names.end(),
                    is_same))
      throw DataError("a turn lists other pictures than its fragments name");
    return "";
  }
  names_.insert(names_.end(), names.begin(), names.end());
  const std::size_t places = count_picture_tags(text);
  if (places != 0 && places != names.size())
    throw DataError(fmt::format("a turn lists {}, but its text has {} times {}", counted(std::ssize(names), "picture"),
                                places, kPictureTag));
  return places == 0 ? picture_tags(names.size()) : "";
}

void SamplePictures::add_list(const json& names) {
  is_listed_ = true;
  add_named(names_in(names));
}

// `names`: all that the sample has. One name and one picture belong together, whatever they are called.
void SamplePictures::add_named(const std::vector<std::string>& names) {
  const bool is_one = std::all_of(names.begin(), names.end(), [&](const auto& name) { return name == names[0]; });
  const SamplePart* only =
      is_one ? only_part(sample_, [](const SamplePart& part) { return is_picture_part(part.name); }) : nullptr;
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
    add_part(*part);
  }
}

void SamplePictures::add_all_parts() {
  if (turns_have_lists_) return;
  for (const SamplePart& part : sample_.parts) {
    if (is_unread_picture_part(part.name))
      throw DataError(
          fmt::format("its part {} is a picture in a format that Braid does not read; convert it to JPEG, "
                      "PNG or WebP",
                      in_quotes(part.name)));
    if (is_picture_part(part.name)) add_part(part);
  }
}

bool SamplePictures::is_same_list(const json& list) const {
  std::set<const SamplePart*> here, there;
  for (const std::string& name : names_) here.insert(part_named(sample_, name));
  for (const std::string& name : names_in(list)) there.insert(part_named(sample_, name));
  return here == there && !there.contains(nullptr);
}

// Fragments without a name have the pictures in turn. Refuses those that say they are another one.
void SamplePictures::check_unnamed(std::size_t places) const {
  if (!names_.empty() || pictures_.size() < 2) return;
  for (const Unnamed& fragment : unnamed_) {
    const std::string pictures = counted(std::ssize(pictures_), "picture");
    if (!fragment.key.empty() && !is_listed_)
      throw DataError(fmt::format("an image fragment has only the key {} to say which of {} it is; name its part",
                                  in_quotes(fragment.key), pictures));
    if (fragment.index.empty()) continue;
    if (fragment.index != fmt::to_string(fragment.place) || places != pictures_.size())
      throw DataError(
          fmt::format("an image fragment with index {} has place {} (counted from 0) of {} for {}; name the parts",
                      fragment.index, fragment.place, places, pictures));
  }
}

std::vector<Picture> SamplePictures::finish(std::size_t places) {
  add_named(names_);
  check_unnamed(places);
  return std::move(pictures_);
}

}  // namespace braid
