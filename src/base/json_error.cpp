#include "base/json_error.h"

#include "base/clean_text.h"

namespace braid {
namespace {

// Without the first part that begins and ends so.
std::string without(std::string text, std::string_view begin, std::string_view end) {
  const std::size_t first = text.find(begin), last = first == text.npos ? first : text.find(end, first + begin.size());
  return last == text.npos ? text : text.erase(first, last + end.size() - first);
}

}  // namespace

std::string json_error(std::string_view what) {
  constexpr std::size_t kLongest = 200;
  std::string text = without(std::string(what), "[json.exception.", "] ");
  text = without(std::move(text), "parse error", " at ");
  return visible_text(without(std::move(text), "syntax error while parsing ", " - "), kLongest);
}

}  // namespace braid
