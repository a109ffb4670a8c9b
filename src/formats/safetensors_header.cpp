#include "formats/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <set>
#include <utility>

#include "base/strings.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDimensions = 64;

std::string kind_of(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return value.is_null() ? "null" : "a number";
}

// An object or a list that begins, or another value; `depth` objects and lists are around it.
struct Seen {
  int depth;
  std::string kind;
};

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  throw ConfigError({what, path, "the file is damaged, or its name is wrong: download it again"});
}

// Calls `key` and `value` meanwhile, which throw for what is not expected. Objects and lists for which `value` returns
// false are left out.
Json parse(std::string_view json, const std::string& path, const char* what,
           const std::function<void(int depth, const std::string& key)>& key,
           const std::function<bool(const Seen& value)>& value) {
  const auto visit = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) key(depth, parsed.get_ref<const std::string&>());
    if (event == Event::object_start) return value({depth, "an object"});
    if (event == Event::array_start) return value({depth, "a list"});
    return event != Event::value || value({depth, kind_of(parsed)});
  };
  try {
    return Json::parse(json.begin(), json.end(), visit);
  } catch (const Json::exception& e) {
    refuse(fmt::format("{} is not JSON: {}", what, json_error(e.what())), path);
  }
}

// Nothing if an item is not a non-negative integer.
std::optional<std::vector<std::int64_t>> integers_of(const Json& tensor, const char* field) {
  const auto list = tensor.find(field);
  if (list == tensor.end()) return std::nullopt;
  std::vector<std::int64_t> integers;
  for (const Json& item : *list) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    integers.push_back(item.get<std::int64_t>());
  }
  return integers;
}

}  // namespace

std::vector<HeaderEntry> parse_header(std::string_view json, const std::string& path, ProblemList& problems) {
  std::set<std::string> names, fields;
  std::string name, field;
  std::size_t items = 0;
  bool is_metadata = false;
  const auto see_key = [&](int depth, const std::string& key) {
    if (depth == 1) {
      name = key;
      is_metadata = key == "__metadata__";
      fields = {"dtype", "shape", "data_offsets"};
      if (!names.insert(key).second)
        problems.add(fmt::format("tensor {} is in the header twice", in_quotes(key)), path, "write the file again");
    } else {
      field = key;
      items = 0;
      if (!is_metadata && fields.erase(key) == 0)
        refuse(fmt::format("tensor {} has {} twice, or it is not a field of a tensor", in_quotes(name), in_quotes(key)),
               path);
    }
  };
  const auto see_value = [&](const Seen& value) {
    const bool is_text = is_metadata || field == "dtype",
               is_nested = value.kind == "an object" || value.kind == "a list";
    if (value.depth == 0 && value.kind != "an object")
      refuse(fmt::format("the header is {}, not an object", value.kind), path);
    if (value.depth == 1 && value.kind != "an object")
      refuse(fmt::format("tensor {} is described by {}, not by an object", in_quotes(name), value.kind), path);
    if ((value.depth == 2 && value.kind != (is_text ? "a string" : "a list")) || (value.depth == 3 && is_nested))
      refuse(fmt::format("field {} of {} is {}", in_quotes(field), in_quotes(name), value.kind), path);
    if (value.depth == 3 && ++items > kMaxDimensions)
      refuse(fmt::format("tensor {} has more than {} dimensions", in_quotes(name), kMaxDimensions), path);
    return true;
  };
  const Json header = parse(json, path, "the header", see_key, see_value);
  std::vector<HeaderEntry> entries;
  for (const auto& [key, tensor] : header.items()) {
    if (key == "__metadata__") continue;
    entries.push_back({key, std::nullopt, integers_of(tensor, "shape"), integers_of(tensor, "data_offsets")});
    if (tensor.contains("dtype")) entries.back().dtype = tensor["dtype"].get<std::string>();
  }
  return entries;
}

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& path, ProblemList& problems) {
  std::set<std::string> names;
  std::string name;
  bool is_map = false;
  const auto see_key = [&](int depth, const std::string& key) {
    name = key;
    if (depth == 1) is_map = key == "weight_map";
    if (depth == 2 && is_map && !names.insert(key).second)
      problems.add(fmt::format("tensor {} is in the index twice", in_quotes(key)), path, "write the model again");
  };
  // The index may have any other keys beside the weight map.
  const auto see_value = [&](const Seen& value) {
    if (value.depth == 0 && value.kind != "an object")
      refuse(fmt::format("the index is {}, not an object", value.kind), path);
    if (is_map && value.depth > 0 && value.kind != (value.depth == 1 ? "an object" : "a string"))
      refuse(fmt::format("the weight_map has {} at {}, not a file name", value.kind, in_quotes(name)), path);
    return value.depth == 0 || is_map || (value.kind != "an object" && value.kind != "a list");
  };
  const Json index = parse(json, path, "the index", see_key, see_value);
  if (!index.contains("weight_map")) throw ConfigError({"the index has no weight_map", path, "write the model again"});
  return index["weight_map"].get<std::map<std::string, std::string>>();
}

}  // namespace braid
