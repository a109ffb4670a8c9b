#include "data/text/chat_template.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

constexpr std::int64_t kMostSteps = 2'000'000;  // of one rendering

// Texts in it are of this source; without one, of none.
TemplateValue from_json(const nlohmann::ordered_json& json, TemplateState& state, std::optional<int> source = {}) {
  if (json.is_string()) {
    TemplateText text = {json.get<std::string>(), {}};
    if (source && !text.text.empty()) text.origins = {{0, text.text.size(), *source}};
    return text;
  }
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_array()) {
    TemplateList items;
    for (const auto& item : json) items.push_back(from_json(item, state, source));
    return state.list(std::move(items));
  }
  if (json.is_object()) {
    TemplateMap map;
    for (const auto& [key, value] : json.items()) map.items.emplace_back(key, from_json(value, state, source));
    return state.map(std::move(map));
  }
  return TemplateNone{};
}

// Every text of a message but its role is of a source.
TemplateValue messages(const nlohmann::ordered_json& list, TemplateState& state) {
  if (!list.is_array()) return from_json(list, state);
  TemplateList values;
  for (const auto& message : list) {
    if (!message.is_object()) {
      values.push_back(from_json(message, state));
      continue;
    }
    const int i = static_cast<int>(values.size());
    TemplateMap map;
    for (const auto& [key, value] : message.items())
      map.put(key, from_json(value, state, key == "role" ? std::nullopt : std::optional(source_of(i, key))));
    values.push_back(state.map(std::move(map)));
  }
  return state.list(std::move(values));
}

}  // namespace

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name, const std::tm& now) {
  render_ = [body = parse_template(source, name), name, now](const nlohmann::ordered_json& variables,
                                                             std::int64_t& steps) {
    const std::int64_t given = std::min(steps, kMostSteps);
    TemplateState state(given, now);
    TemplateText text;
    std::string error;
    try {
      TemplateScope& scope = state.scope(nullptr);
      for (const auto& [key, value] : variables.items())
        scope.variables[key] = key == "messages" ? messages(value, state) : from_json(value, state);
      body(state, scope, text);
    } catch (const DataError& e) {
      error = fmt::format("{}, line {}: {}", name, state.line, e.what());
    }
    steps -= given - state.steps_left();
    if (!error.empty()) throw DataError(error);
    return text;
  };
}

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  std::int64_t steps = kMostSteps;
  return render(variables, steps).text;
}

}  // namespace braid
