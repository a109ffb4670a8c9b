// What the names of a sample's parts and keys say about them.
#pragma once

#include <string>
#include <string_view>

namespace braid {

std::string last_extension(std::string_view part);  // in lower case
bool is_picture_part(std::string_view part);
bool is_unread_picture_part(std::string_view part);  // a picture in a format that Braid does not read
bool is_sound_or_video_part(std::string_view part);
bool is_sound_or_video_key(std::string_view key);
// Identifies or describes a sample or a turn; a conversation is the same without it.
bool is_metadata_key(std::string_view key);

}  // namespace braid
