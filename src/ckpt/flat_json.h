// JSON of a checkpoint's small files, which is nested only a few levels deep. Copying or printing deeper JSON could
// overflow the stack.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "base/error.h"

namespace braid {

// Discarded if the text is not JSON; DataError that names `file` if it is nested too deep.
inline nlohmann::json parse_flat_json(std::string_view text, const std::string& file) {
  using Json = nlohmann::json;
  constexpr int kDeepest = 16;
  const auto refuse_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool opens = event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    if (opens && depth >= kDeepest)
      throw DataError(fmt::format("{}: lists and objects are nested more than {} deep", file, kDeepest));
    return true;
  };
  return Json::parse(text.begin(), text.end(), refuse_depth, /*allow_exceptions=*/false);
}

}  // namespace braid
