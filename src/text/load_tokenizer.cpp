#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <span>

#include "base/crc32c.h"
#include "base/error.h"
#include "text/hf_codec.h"
#include "text/json_place.h"
#include "text/sentencepiece_codec.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestId = 1 << 30;
constexpr std::uintmax_t kLargestFile = 512 << 20;  // the largest known tokenizer.json has 33 MB

std::string read_whole(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (!error && size > kLargestFile)
    throw DataError(fmt::format("{} has {} bytes, more than any tokenizer", path.string(), size));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError({"the file cannot be opened", path.string(), "check its name and permissions"});
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw DataError(fmt::format("{} cannot be read", path.string()));
  return bytes;
}

// "bos_token": "<s>", or {"content": "<s>", ...}.
std::optional<std::string> read_token(const JsonPlace& place) {
  if (place.is_null()) return std::nullopt;
  return place.value().is_object() ? place["content"].string() : place.string();
}

// A template, or a list of named ones.
std::optional<std::string> read_template(const JsonPlace& place) {
  if (place.is_null()) return std::nullopt;
  if (!place.value().is_array()) return place.string();
  for (const JsonPlace& named : place.elements())
    if (named["name"].string() == "default") return named["template"].string();
  place.refuse("has no template named \"default\"");
}

// "eos_token_id": 2, or [2, 11].
std::vector<int> read_stop_ids(const fs::path& path) {
  if (!fs::exists(path)) return {};
  const nlohmann::json json = parse_json_file(read_whole(path), path.string());
  const JsonPlace place = JsonPlace(json, path.string())["eos_token_id"];
  std::vector<int> ids;
  const auto add = [&](const JsonPlace& id) { ids.push_back(static_cast<int>(id.integer(0, kLargestId))); };
  if (place.value().is_array())
    for (const JsonPlace& id : place.elements()) add(id);
  else if (!place.is_null())
    add(place);
  return ids;
}

TokenizerSettings read_settings(const std::optional<JsonPlace>& config, const fs::path& folder) {
  TokenizerSettings settings;
  if (config)
    settings = {read_token((*config)["bos_token"]), read_token((*config)["eos_token"]),
                read_token((*config)["pad_token"]), read_token((*config)["unk_token"]),
                read_template((*config)["chat_template"])};
  settings.stop_ids = read_stop_ids(folder / "generation_config.json");
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) settings.chat_template = read_whole(path);
  return settings;
}

fs::path tokenizer_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(path / name)) return path / name;
  throw ConfigError(
      {"the folder has no tokenizer", path.string(), "it should contain tokenizer.json or tokenizer.model"});
}

std::string fingerprint_of(const std::vector<std::string>& contents) {
  std::size_t size = 0;
  std::uint32_t checksum = 0;
  for (const std::string& bytes : contents) {
    size += bytes.size();
    checksum = crc32c(std::as_bytes(std::span(bytes)), checksum);
  }
  return fmt::format("{} bytes with checksum {:08x}", size, checksum);
}

}  // namespace

Tokenizer load_tokenizer(const std::string& path) {
  const fs::path file = tokenizer_file(path);
  const fs::path folder = file.parent_path(), config_file = folder / "tokenizer_config.json";
  const std::string bytes = read_whole(file);
  const std::string name = file.string();
  std::string config_bytes;
  nlohmann::json json;
  std::optional<JsonPlace> config;
  if (fs::exists(config_file)) {
    config_bytes = read_whole(config_file);
    json = parse_json_file(config_bytes, config_file.string());
    config.emplace(json, config_file.string());
  }
  auto codec =
      file.extension() == ".model" ? read_sentencepiece_codec(bytes, name) : read_hf_codec(bytes, name, config);
  TokenizerSettings settings = read_settings(config, folder);
  std::string fingerprint = fingerprint_of({bytes, config_bytes, settings.chat_template.value_or("")});
  return Tokenizer(std::move(codec), std::move(settings), name, std::move(fingerprint));
}

}  // namespace braid
