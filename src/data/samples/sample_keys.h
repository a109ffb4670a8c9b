// What the names of a sample's parts, and the keys of its JSON, say about them.
#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace braid {

std::string last_extension(std::string_view part);  // in lower case
bool is_picture_part(std::string_view part);
bool is_unread_picture_part(std::string_view part);  // a picture in a format that Braid does not read
// Identifies or describes a sample or a turn; a conversation is the same without it.
bool is_metadata_key(std::string_view key);

bool is_sound_or_video_part(std::string_view part);
// DataError if the key is one of sound or video, and has a value.
void refuse_sound_or_video(const std::string& key, const nlohmann::ordered_json& value);

// The first of these keys that an object has with a value; null if it has none.
const nlohmann::ordered_json* find_any(const nlohmann::ordered_json& object, std::initializer_list<const char*> keys);
// A string, or a number as text. DataError for anything else, which `what` names.
std::string text_of(const nlohmann::ordered_json& value, const char* what);

}  // namespace braid
