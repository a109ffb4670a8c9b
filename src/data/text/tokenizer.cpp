#include "data/text/tokenizer.h"

#ifdef BRAID_HAS_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

#include <nlohmann/json.hpp>
#include "base/crc32c.h"
#include "base/files.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kShown = 80;

std::string shown(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

constexpr const char* kSentencePieceEnd = "</s>";
constexpr std::int64_t kLargestId = 1 << 30;
constexpr std::uintmax_t kLargestFile = 512 << 20;  // the largest known tokenizer.json has 33 MB

std::string read_whole(const fs::path& path) {
  return read_small_file(path, kLargestFile, "check its name and permissions");
}

std::optional<std::string> find_whole(const fs::path& path) { return find_small_file(path, kLargestFile); }

// "bos_token": "<s>", or {"content": "<s>", ...}.
std::optional<std::string> read_token(const JsonPlace& place) {
  if (place.is_null()) return std::nullopt;
  return place.value().is_object() ? place["content"].string() : place.string();
}

// A template, or a list of named ones. As in transformers, "tool_use" is for conversations with tools, and "default"
// for the others.
void read_templates(const JsonPlace& place, TokenizerSettings& settings) {
  if (place.is_null()) return;
  if (!place.value().is_array()) {
    settings.chat_template = place.string();
    return;
  }
  for (const JsonPlace& named : place.elements()) {
    if (named["name"].string() == "default") settings.chat_template = named["template"].string();
    if (named["name"].string() == "tool_use") settings.tool_template = named["template"].string();
  }
  if (!settings.chat_template) place.refuse("has no template named \"default\"");
}

// "eos_token_id": 2, or [2, 11].
std::vector<int> read_stop_ids(const fs::path& path) {
  const auto bytes = find_whole(path);
  if (!bytes) return {};
  const nlohmann::json json = parse_json_file(*bytes, path.string());
  const JsonPlace place = JsonPlace(json, path.string())["eos_token_id"];
  if (place.is_null()) return {};
  std::vector<int> ids;
  for (const JsonPlace& id : place.value().is_array() ? place.elements() : std::vector{place})
    ids.push_back(static_cast<int>(id.integer(0, kLargestId)));
  return ids;
}

TokenizerSettings read_settings(const JsonPlace* config, const fs::path& folder) {
  TokenizerSettings settings;
  if (config) {
    settings = {read_token((*config)["bos_token"]), read_token((*config)["eos_token"]),
                read_token((*config)["pad_token"]), read_token((*config)["unk_token"])};
    read_templates((*config)["chat_template"], settings);
  }
  settings.stop_ids = read_stop_ids(folder / "generation_config.json");
  // Files of their own take precedence over tokenizer_config.json.
  if (auto usual = find_whole(folder / "chat_template.jinja")) {
    settings.chat_template = *std::move(usual);
    settings.tool_template = find_whole(folder / "additional_chat_templates/tool_use.jinja");
  }
  return settings;
}

fs::path tokenizer_file(const fs::path& path) {
  if (kind_of_file(path) != FileKind::Folder) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (kind_of_file(path / name) != FileKind::None) return path / name;
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

nlohmann::json parse_json_file(std::string_view text, const std::string& name) {
  const auto refuse_depth = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json&) {
    if (depth >= kDeepest &&
        (event == nlohmann::json::parse_event_t::array_start || event == nlohmann::json::parse_event_t::object_start))
      throw DataError(fmt::format("{}: lists and objects are nested more than {} deep", name, kDeepest));
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), refuse_depth);
  } catch (const nlohmann::json::exception& e) {
    throw DataError(fmt::format("{}: not JSON: {}", name, json_error(e.what())));
  }
}

bool JsonPlace::is_null() const { return value_->is_null(); }

JsonPlace JsonPlace::operator[](const char* key) const {
  static const nlohmann::json null;
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  const std::size_t colon = path_.find(": ");
  const char* separator = colon == std::string::npos ? ": " : ".";
  return {found == value_->end() ? null : *found, path_ + separator + key};
}

JsonPlace JsonPlace::operator[](std::size_t index) const {
  return {value_->at(index), fmt::format("{}[{}]", path_, index)};
}

std::vector<JsonPlace> JsonPlace::elements() const {
  if (!value_->is_array()) expected("a list");
  std::vector<JsonPlace> places;
  for (std::size_t i = 0; i < value_->size(); ++i) places.push_back((*this)[i]);
  return places;
}

const std::string& JsonPlace::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonPlace::boolean_or(bool if_null) const {
  if (is_null()) return if_null;
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::int64_t JsonPlace::integer(std::int64_t least, std::int64_t most) const {
  if (!value_->is_number_integer() || *value_ < least || *value_ > most)
    expected(fmt::format("an integer from {} to {}", least, most));
  return value_->get<std::int64_t>();
}

void JsonPlace::expected(const std::string& what) const {
  refuse(fmt::format("should be {}, not {}", what, shown(*value_)));
}

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
  return is_utf8(text) ? codec_->encode(text, add_special) : codec_->encode(with_valid_utf8(text), add_special);
}

bool Tokenizer::is_stop(int id) const {
  const std::vector<int>& ids = settings_.stop_ids;
  return std::find(ids.begin(), ids.end(), id) != ids.end() || (settings_.eos && find(*settings_.eos) == id);
}

Tokenizer load_tokenizer(const std::string& path) {
  const fs::path file = tokenizer_file(path);
  const fs::path folder = file.parent_path(), config_file = folder / "tokenizer_config.json";
  const std::string bytes = read_whole(file);
  const std::string name = file.string();
  const auto config_bytes = find_whole(config_file);
  nlohmann::json json;
  if (config_bytes) json = parse_json_file(*config_bytes, config_file.string());
  const JsonPlace place(json, config_file.string());
  const JsonPlace* config = config_bytes ? &place : nullptr;
  auto codec =
      file.extension() == ".model" ? read_sentencepiece_codec(bytes, name) : read_hf_codec(bytes, name, config);
  TokenizerSettings settings = read_settings(config, folder);
  if (!config && file.extension() == ".model" && codec->find(kSentencePieceEnd)) settings.eos = kSentencePieceEnd;
  std::string fingerprint = fingerprint_of({bytes, config_bytes.value_or(""),
                                            settings.chat_template.value_or("") + settings.tool_template.value_or(""),
                                            fmt::format("{}", fmt::join(settings.stop_ids, " "))});
  return Tokenizer(std::move(codec), std::move(settings), name, std::move(fingerprint));
}

#ifdef BRAID_HAS_SENTENCEPIECE
namespace {

class SentencePieceCodec : public TokenCodec {
 public:
  SentencePieceCodec(std::string_view bytes, const std::string& name) {
    check(model_.LoadFromSerializedProto(bytes), name + ": not a sentencepiece model");
  }

  std::vector<int> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    check(model_.Encode(text, &ids), "sentencepiece cannot encode a text");
    if (add_special && model_.bos_id() >= 0) ids.insert(ids.begin(), model_.bos_id());
    return ids;
  }

  std::string decode(const std::vector<int>& ids, bool skip_special) const override {
    std::vector<int> shown;
    for (const int id : ids) {
      if (id < 0 || id >= vocab_size())
        throw DataError(fmt::format("no token has the id {}; ids are below {}", id, vocab_size()));
      if (!skip_special || !model_.IsControl(id)) shown.push_back(id);
    }
    std::string text;
    check(model_.Decode(shown, &text), "sentencepiece cannot decode tokens");
    return text;
  }

  // The library answers the id of <unk> for unknown tokens.
  std::optional<int> find(std::string_view token) const override {
    const int id = model_.PieceToId(token);
    return id >= 0 && id < vocab_size() && model_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }

  std::optional<std::string> token(int id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(model_.IdToPiece(id)) : std::nullopt;
  }

  std::string bytes(int id) const override { return bytes_of_piece(model_.IdToPiece(id)); }
  bool is_special(int id) const override { return model_.IsControl(id); }

  int vocab_size() const override { return model_.GetPieceSize(); }

 private:
  static void check(const sentencepiece::util::Status& status, const std::string& what) {
    if (!status.ok()) throw DataError(fmt::format("{}: {}", what, status.ToString()));
  }

  sentencepiece::SentencePieceProcessor model_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view bytes, const std::string& name) {
  return std::make_unique<SentencePieceCodec>(bytes, name);
}
#else
std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view, const std::string& name) {
  refuse_without("the sentencepiece library", "a sentencepiece model", name, "libsentencepiece-dev");
}
#endif

std::vector<int> encode_plain_text(const Tokenizer& tokenizer, std::string_view text, bool append_eod) {
  std::vector<int> ids = tokenizer.encode(text, /*add_special=*/true);
  if (!append_eod) return ids;
  const auto& eos = tokenizer.settings().eos;
  const std::optional<int> id = eos ? tokenizer.find(*eos) : std::nullopt;
  if (!id)
    throw ConfigError(
        {fmt::format("plain text ends with an EOS token, and the tokenizer {} has none", tokenizer.where()),
         "data.append_eod", "set eos_token in tokenizer_config.json, or data.append_eod=false"});
  if (ids.empty() || ids.back() != *id) ids.push_back(*id);
  return ids;
}

}  // namespace braid
