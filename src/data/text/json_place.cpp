#include "data/text/json_place.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;
constexpr std::size_t kShown = 80;

std::string shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

}  // namespace

Json parse_json_file(std::string_view text, const std::string& name) {
  const auto refuse_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    if (depth >= kDeepest && (event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start))
      throw DataError(fmt::format("{}: lists and objects are nested more than {} deep", name, kDeepest));
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), refuse_depth);
  } catch (const Json::exception& e) {
    throw DataError(fmt::format("{}: not JSON: {}", name, json_error(e.what())));
  }
}

bool JsonPlace::is_null() const { return value_->is_null(); }

JsonPlace JsonPlace::operator[](const char* key) const {
  static const Json null;
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

std::string JsonPlace::string_or(const std::string& if_null) const { return is_null() ? if_null : string(); }

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

std::string JsonPlace::type() const { return (*this)["type"].string(); }

void JsonPlace::refuse(const std::string& what) const { throw DataError(fmt::format("{} {}", path_, what)); }

void JsonPlace::expected(const std::string& what) const {
  refuse(fmt::format("should be {}, not {}", what, shown(*value_)));
}

}  // namespace braid
