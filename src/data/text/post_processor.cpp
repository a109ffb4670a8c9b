#include "data/text/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

void append_special(const JsonPlace& processor, const JsonPlace& item, std::vector<int>& out) {
  const std::string& name = item["id"].string();
  const JsonPlace ids = processor["special_tokens"][name.c_str()]["ids"];
  for (const JsonPlace& id : ids.elements()) out.push_back(static_cast<int>(id.integer(0, 1 << 30)));
}

SpecialFrame read_template(const JsonPlace& place) {
  SpecialFrame frame;
  bool seen_text = false;
  const JsonPlace single = place["single"];
  for (const JsonPlace& item : single.elements()) {
    if (!item["SpecialToken"].is_null()) {
      append_special(place, item["SpecialToken"], seen_text ? frame.after : frame.before);
      continue;
    }
    if (seen_text || item["Sequence"]["id"].string() != "A") item.refuse("should be the text (A), once");
    seen_text = true;
  }
  if (!seen_text) single.refuse("should contain the text (A)");
  return frame;
}

}  // namespace

SpecialFrame read_post_processor(const JsonPlace& place) {
  if (place.is_null()) return {};
  const std::string type = place.type();
  if (type == "ByteLevel") return {};  // it only changes offsets
  if (type == "TemplateProcessing") return read_template(place);
  if (type != "Sequence")
    place.refuse(
        fmt::format("has type {}; known post-processors: Sequence, TemplateProcessing, ByteLevel", in_quotes(type)));
  SpecialFrame frame;
  for (const JsonPlace& part : place["processors"].elements()) {
    const SpecialFrame outer = read_post_processor(part);
    frame.before.insert(frame.before.begin(), outer.before.begin(), outer.before.end());
    frame.after.insert(frame.after.end(), outer.after.begin(), outer.after.end());
  }
  return frame;
}

}  // namespace braid
