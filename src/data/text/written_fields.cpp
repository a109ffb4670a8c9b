// Whether a chat template writes what a conversation has beside its texts.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_targets.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kThoughts = {"reasoning_content", "reasoning", "thinking"};
constexpr std::array kCalls = {"tool_calls", "function_call", "tools"};

// Texts that are put into the values of a conversation, to look for them in what the template writes. They have private
// characters, which no filter changes.
class Marks {
 public:
  struct Mark {
    std::string text, what;
  };

  // Marks a text, the name of a tool, or the name and the arguments of a call; in a list, each item.
  void put(Json& value, const std::string& what) {
    if (value.is_string()) {
      value = value.get<std::string>() + next(what);
    } else if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) put(value[i], fmt::format("{}[{}]", what, i));
    } else if (value.is_object()) {
      if (const auto inner = value.find("function"); inner != value.end() && inner->is_object())
        return put(*inner, what);
      if (const auto name = value.find("name"); name != value.end() && name->is_string()) put(*name, what + ".name");
      if (const auto given = value.find("arguments"); given != value.end()) put_argument(*given, what + ".arguments");
    }
  }

  const std::vector<Mark>& all() const { return marks_; }

 private:
  void put_argument(Json& arguments, const std::string& what) {
    if (!arguments.is_object()) return put(arguments, what);
    const std::string mark = next(what);
    arguments[mark] = mark;
  }

  std::string next(const std::string& what) {
    marks_.push_back({fmt::format("\uE000{}\uE001", marks_.size()), what});
    return marks_.back().text;
  }

  std::vector<Mark> marks_{};
};

// The same thought may have several names; it is enough if the template writes one of them.
void mark_thoughts(Json& fields, Marks& marks) {
  std::vector<std::pair<Json, Json>> marked;  // each value without and with its mark
  for (const char* key : kThoughts) {
    const auto found = fields.find(key);
    if (found == fields.end() || !found->is_string() || is_empty_value(*found)) continue;
    const auto same =
        std::find_if(marked.begin(), marked.end(), [&](const auto& other) { return other.first == *found; });
    if (same != marked.end()) {
      *found = same->second;
      continue;
    }
    const Json before = *found;
    marks.put(*found, key);
    marked.emplace_back(before, *found);
  }
}

Marks mark_turn(ChatTurn& turn) {
  Marks marks;
  Json fields = *turn.fields;
  mark_thoughts(fields, marks);
  for (const char* key : kCalls)
    if (const auto found = fields.find(key); found != fields.end()) marks.put(*found, key);
  turn.fields = std::make_shared<const Json>(std::move(fields));
  return marks;
}

// What `render` writes; nothing if the template refuses it, for example a name that has a mark.
std::optional<std::string> attempt(const RenderChat& render, const std::vector<ChatTurn>& turns,
                                   const TemplateInput& tools) {
  try {
    return render(turns, tools);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

const Marks::Mark* missing_in(const std::optional<std::string>& text, const Marks& marks) {
  if (!text) return nullptr;
  for (const Marks::Mark& mark : marks.all())
    if (text->find(mark.text) == text->npos) return &mark;
  return nullptr;
}

std::vector<ChatTurn> without(std::vector<ChatTurn> turns, const std::string& key) {
  for (ChatTurn& turn : turns) {
    if (!turn.fields || !turn.fields->contains(key)) continue;
    Json fields = *turn.fields;
    fields.erase(key);
    turn.fields = std::make_shared<const Json>(std::move(fields));
  }
  return turns;
}

// Without rendering it: message.key or message['key'].
bool may_read(const std::string& template_source, const std::string& key) {
  for (const std::string& word : {"." + key, "'" + key + "'", '"' + key + '"'})
    if (template_source.find(word) != template_source.npos) return true;
  return false;
}

}  // namespace

bool says_something(const std::string& key) {
  return std::find(kThoughts.begin(), kThoughts.end(), key) != kThoughts.end() ||
         std::find(kCalls.begin(), kCalls.end(), key) != kCalls.end();
}

bool is_empty_value(const Json& value) { return value.empty() || value == "" || value == false; }

void require_written_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools, const RenderChat& render) {
  if (tools) {
    Json marked = *tools;
    Marks marks;
    marks.put(marked, "tools");
    if (const auto* lost = missing_in(attempt(render, turns, std::make_shared<const Json>(marked)), marks))
      throw DataError(fmt::format("the chat template does not write the sample's {}", lost->what));
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (!turns[i].fields) continue;
    std::vector<ChatTurn> marked(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    const Marks marks = mark_turn(marked.back());
    if (marks.all().empty()) continue;
    if (const auto* lost = missing_in(attempt(render, marked, tools), marks))
      throw DataError(
          fmt::format("the chat template does not write the {} of turn {} ({})", lost->what, i + 1, turns[i].role));
  }
}

std::vector<std::string> unwritten_keys(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                        const std::string& template_source, const RenderChat& render) {
  std::set<std::string> keys;
  for (const ChatTurn& turn : turns)
    if (turn.fields)
      for (const auto& [key, value] : turn.fields->items())
        if (key != "content" && !says_something(key)) keys.insert(key);
  std::vector<std::string> unwritten;
  std::optional<std::string> whole;
  for (const std::string& key : keys) {
    const bool is_read = may_read(template_source, key);
    if (is_read && !whole) whole = attempt(render, turns, tools);
    if (is_read && !whole) break;  // the template refuses the sample, which is reported elsewhere
    if (!is_read || whole == attempt(render, without(turns, key), tools)) unwritten.push_back(key);
  }
  return unwritten;
}

}  // namespace braid
