#include "data/samples/sample_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/chat.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string last_extension(std::string_view part) {
  std::string extension(part.substr(part.rfind('.') == part.npos ? 0 : part.rfind('.') + 1));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

bool is_picture_part(std::string_view part) { return is_one_of(last_extension(part), {"jpg", "jpeg", "png", "webp"}); }

bool is_unread_picture_part(std::string_view part) {
  return is_one_of(last_extension(part), {"gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2", "jxl", "ppm",
                                          "pgm", "svg", "ico", "apng", "jfif"});
}

bool is_sound_or_video_part(std::string_view part) {
  return is_one_of(last_extension(part),
                   {"wav", "mp3", "flac", "ogg", "oga",  "opus", "m4a", "aac",  "wma", "aiff", "aif", "amr", "mp4",
                    "m4v", "mov", "avi",  "mkv", "webm", "weba", "mpg", "mpeg", "wmv", "flv",  "3gp", "ogv"});
}

bool is_metadata_key(std::string_view key) {
  return key.starts_with("__") ||
         is_one_of(key, {"id",      "_id",    "uid",      "uuid",        "key",          "sample_id", "image_id",
                         "index",   "idx",    "turn_id",  "message_id",  "url",          "urls",      "source",
                         "src",     "origin", "dataset",  "data_source", "dataset_name", "license",   "split",
                         "subset",  "task",   "category", "tags",        "language",     "lang",      "model",
                         "version", "date",   "created",  "created_at",  "timestamp",    "metadata",  "meta",
                         "width",   "height", "size",     "sha256",      "md5",          "hash"});
}

void refuse_sound_or_video(const std::string& key, const json& value) {
  if (!is_empty_value(value) && is_one_of(key, {"video", "videos", "video_path", "video_file", "video_url", "audio",
                                                "audios", "audio_path", "audio_file", "audio_url", "sound", "speech"}))
    throw DataError(fmt::format("its {} is sound or video, which no encoder takes from a data set", in_quotes(key)));
}

const json* find_any(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !found->is_null()) return &*found;
  return nullptr;
}

std::string text_of(const json& value, const char* what) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  throw DataError(fmt::format("{} is not a text", what));
}

}  // namespace braid
