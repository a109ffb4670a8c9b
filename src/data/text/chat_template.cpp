#include "data/text/chat_template.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

// Variables of a loop, a macro or the whole template.
struct Frame {
  std::unordered_map<std::string, TemplateValue> variables;
  Frame* parent = nullptr;
};

}  // namespace

struct TemplateMacro {
  const TemplateStatement* statement;
  Frame* frame;  // where it was defined
};

namespace {

using ExpressionKind = TemplateExpression::Kind;
using StatementKind = TemplateStatement::Kind;

constexpr std::int64_t kMostSteps = 2'000'000;  // of one rendering
constexpr std::size_t kFrameBytes = 1000;       // roughly what a frame and its variables take
constexpr int kDeepest = 1000;                  // statements, expressions and macro calls inside each other

class Rendering {
 public:
  Rendering(std::int64_t steps, const std::tm& now) : budget_(steps), builtins_(heap_, budget_, now) {}
  std::int64_t steps_left() const { return budget_.steps_left(); }

  TemplateText run(const TemplateBody& body, const nlohmann::ordered_json& variables) {
    Frame& frame = frames_.emplace_back();
    for (const auto& [name, value] : variables.items())
      frame.variables[name] = name == "messages" ? messages(value) : from_json(value, heap_);
    TemplateText out;
    execute(body, frame, out);
    return out;
  }
  int line() const { return line_; }

 private:
  enum class Flow { Next, Break, Continue };

  class Deeper {
   public:
    explicit Deeper(Rendering& rendering) : depth_(rendering.depth_) {
      if (++depth_ > kDeepest) throw DataError("the template is nested too deep, or a macro calls itself for ever");
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;

   private:
    int& depth_;
  };

  // Every text of a message but its role is of a source.
  TemplateValue messages(const nlohmann::ordered_json& list) {
    if (!list.is_array()) return from_json(list, heap_);
    TemplateList values;
    for (const auto& message : list) {
      if (!message.is_object()) {
        values.push_back(from_json(message, heap_));
        continue;
      }
      const int i = static_cast<int>(values.size());
      TemplateMap map;
      for (const auto& [key, value] : message.items())
        map.put(key, from_json(value, heap_, key == "role" ? std::nullopt : std::optional(source_of(i, key))));
      values.push_back(heap_.map(std::move(map)));
    }
    return heap_.list(std::move(values));
  }

  Flow execute(const TemplateBody& body, Frame& frame, TemplateText& out) {
    const Deeper deeper(*this);
    for (const TemplateStatement& statement : body)
      if (const Flow flow = execute(statement, frame, out); flow != Flow::Next) return flow;
    return Flow::Next;
  }

  Flow execute(const TemplateStatement& statement, Frame& frame, TemplateText& out) {
    budget_.step();
    line_ = statement.line;
    switch (statement.kind) {
      case StatementKind::Text:
        write({statement.text, {}}, out);
        break;
      case StatementKind::Output:
        write(to_text_with_origins(evaluate(*statement.value, frame)), out);
        break;
      case StatementKind::If:
        return execute(evaluate(*statement.value, frame).truth() ? statement.body : statement.otherwise, frame, out);
      case StatementKind::For:
        return loop(statement, frame, out);
      case StatementKind::Set:
        set(statement, frame);
        break;
      case StatementKind::Macro:
        frame.variables[statement.text] = macro(statement, frame);
        break;
      case StatementKind::Call: {
        TemplateArguments given = arguments(*statement.value, frame);
        given.named.emplace_back("caller", macro(statement, frame));
        write(to_text_with_origins(call(*statement.value, given, frame)), out);
        break;
      }
      case StatementKind::Body:
        return execute(statement.body, frame, out);
      case StatementKind::Break:
        return Flow::Break;
      case StatementKind::Continue:
        return Flow::Continue;
    }
    return Flow::Next;
  }

  void write(const TemplateText& text, TemplateText& out) {
    budget_.bytes(text.text.size());
    out.append(text);
  }

  static void bind(const std::vector<std::string>& names, const TemplateValue& value, Frame& frame,
                   TemplateBuiltins& builtins) {
    if (names.size() == 1) {
      frame.variables[names[0]] = value;
      return;
    }
    const TemplateList parts = builtins.items_of(value);
    if (parts.size() != names.size())
      throw DataError(fmt::format("{} cannot become {}", counted(std::ssize(parts), "value"),
                                  counted(std::ssize(names), "variable")));
    for (std::size_t i = 0; i < names.size(); ++i) frame.variables[names[i]] = parts[i];
  }

  Flow loop(const TemplateStatement& statement, Frame& outer, TemplateText& out) {
    TemplateList items = builtins_.items_of(evaluate(*statement.value, outer));
    if (statement.condition) {
      Frame& trial = frames_.emplace_back(Frame{{}, &outer});
      std::erase_if(items, [&](const TemplateValue& item) {
        bind(statement.names, item, trial, builtins_);
        return !evaluate(*statement.condition, trial).truth();
      });
    }
    if (items.empty()) return execute(statement.otherwise, outer, out);
    budget_.bytes(kFrameBytes);
    TemplateMap* state = heap_.map();
    Frame& frame = frames_.emplace_back(Frame{{}, &outer});
    for (std::size_t i = 0; i < items.size(); ++i) {
      frame.variables.clear();
      describe_loop(*state, items, i);
      frame.variables["loop"] = state;
      bind(statement.names, items[i], frame, builtins_);
      if (execute(statement.body, frame, out) == Flow::Break) break;
    }
    return Flow::Next;
  }

  static void describe_loop(TemplateMap& state, const TemplateList& items, std::size_t i) {
    const auto index = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
    state.put("index", index + 1);
    state.put("index0", index);
    state.put("revindex", count - index);
    state.put("revindex0", count - index - 1);
    state.put("first", index == 0);
    state.put("last", index + 1 == count);
    state.put("length", count);
    state.put("previtem", i > 0 ? items[i - 1] : TemplateValue(TemplateUndefined{"loop.previtem"}));
    state.put("nextitem", i + 1 < items.size() ? items[i + 1] : TemplateValue(TemplateUndefined{"loop.nextitem"}));
  }

  void set(const TemplateStatement& statement, Frame& frame) {
    TemplateValue value;
    if (statement.value) {
      value = evaluate(*statement.value, frame);
    } else {
      TemplateText text;
      execute(statement.body, frames_.emplace_back(Frame{{}, &frame}), text);
      value = TemplateValue(std::move(text));
    }
    if (!statement.is_item) return bind(statement.names, value, frame, builtins_);
    const TemplateValue target = lookup(statement.names[0], frame);
    TemplateMap* const* map = target.get<TemplateMap*>();
    if (!map || !(*map)->is_namespace)
      throw DataError(fmt::format("{} is not a namespace, so {} cannot be set", in_quotes(statement.names[0]),
                                  in_quotes(statement.names[1])));
    (*map)->put(statement.names[1], value);
  }

  TemplateValue lookup(const std::string& name, const Frame& innermost) const {
    for (const Frame* frame = &innermost; frame; frame = frame->parent)
      if (const auto found = frame->variables.find(name); found != frame->variables.end()) return found->second;
    if (TemplateBuiltins::is_function(name)) return TemplateFunction{name};
    return TemplateUndefined{name};
  }

  TemplateValue evaluate(const TemplateExpression& expression, Frame& frame) {
    const Deeper deeper(*this);
    budget_.step();
    line_ = expression.line;
    const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i], frame); };
    switch (expression.kind) {
      case ExpressionKind::Constant:
        return expression.constant;
      case ExpressionKind::Name:
        return lookup(expression.text, frame);
      case ExpressionKind::List:
        return list(expression, frame);
      case ExpressionKind::Map:
        return map(expression, frame);
      case ExpressionKind::Attribute:
        return builtins_.attribute(part(0), expression.text);
      case ExpressionKind::Item:
        return builtins_.item(part(0), part(1));
      case ExpressionKind::Slice:
        return slice(expression, frame);
      case ExpressionKind::Call:
        return call(expression, arguments(expression, frame), frame);
      case ExpressionKind::Filter:
        return builtins_.filter(expression.text, part(0), arguments(expression, frame));
      case ExpressionKind::Test:
        return builtins_.test(expression.text, part(0), arguments(expression, frame));
      case ExpressionKind::Unary:
        if (expression.text == "not") return !part(0).truth();
        return expression.text == "-" ? negative(part(0)) : part(0);
      case ExpressionKind::Binary:
        return binary(expression, frame);
      case ExpressionKind::Conditional:
        if (part(1).truth()) return part(0);
        return expression.parts[2] ? part(2) : TemplateValue(TemplateUndefined{"a condition without else"});
      case ExpressionKind::Unpacked:
        throw DataError("'*' is not before an argument of a call");
    }
    return {};
  }

  TemplateValue list(const TemplateExpression& expression, Frame& frame) {
    TemplateList items;
    for (const auto& part : expression.parts) items.push_back(evaluate(*part, frame));
    budget_.bytes(items.size() * sizeof(TemplateValue));
    return heap_.list(std::move(items));
  }

  TemplateValue map(const TemplateExpression& expression, Frame& frame) {
    TemplateMap items;
    for (std::size_t i = 0; i < expression.parts.size(); i += 2) {
      const TemplateValue key = evaluate(*expression.parts[i], frame);
      if (!key.is<std::string>()) items.other_keys.emplace_back(to_text(key), key);
      items.put(to_text(key), evaluate(*expression.parts[i + 1], frame));
    }
    budget_.bytes(items.items.size() * sizeof(TemplateValue));
    return heap_.map(std::move(items));
  }

  TemplateValue slice(const TemplateExpression& expression, Frame& frame) {
    const TemplateValue value = evaluate(*expression.parts[0], frame);
    TemplateValue bounds[3];
    const TemplateValue* given[3] = {};
    for (std::size_t i = 0; i < 3; ++i)
      if (expression.parts[i + 1]) {
        bounds[i] = evaluate(*expression.parts[i + 1], frame);
        given[i] = &bounds[i];
      }
    return builtins_.slice(value, given[0], given[1], given[2]);
  }

  TemplateValue binary(const TemplateExpression& expression, Frame& frame) {
    const TemplateValue left = evaluate(*expression.parts[0], frame);
    if (expression.text == "and") return left.truth() ? evaluate(*expression.parts[1], frame) : left;
    if (expression.text == "or") return left.truth() ? left : evaluate(*expression.parts[1], frame);
    return apply_operator(expression.text, left, evaluate(*expression.parts[1], frame), builtins_, heap_, budget_);
  }

  TemplateArguments arguments(const TemplateExpression& expression, Frame& frame) {
    TemplateArguments values;
    for (std::size_t i = 1; i < expression.parts.size(); ++i) {
      const TemplateExpression& part = *expression.parts[i];
      if (part.kind != ExpressionKind::Unpacked) {
        values.positional.push_back(evaluate(part, frame));
        continue;
      }
      for (const TemplateValue& item : builtins_.items_of(evaluate(*part.parts[0], frame)))
        values.positional.push_back(item);
    }
    for (const auto& [name, value] : expression.named) values.named.emplace_back(name, evaluate(*value, frame));
    return values;
  }

  TemplateFunction macro(const TemplateStatement& statement, Frame& frame) {
    return {statement.text, &macros_.emplace_back(TemplateMacro{&statement, &frame})};
  }

  TemplateValue call(const TemplateExpression& expression, const TemplateArguments& given, Frame& frame) {
    const TemplateExpression& callee = *expression.parts[0];
    if (callee.kind == ExpressionKind::Attribute)
      return builtins_.method(evaluate(*callee.parts[0], frame), callee.text, given);
    const TemplateValue target = evaluate(callee, frame);
    const auto* function = target.get<TemplateFunction>();
    if (!function)
      throw DataError(fmt::format("{} is not a function",
                                  callee.kind == ExpressionKind::Name ? in_quotes(callee.text) : target.type_name()));
    return function->macro ? call_macro(*function->macro, given) : builtins_.function(function->name, given);
  }

  TemplateValue call_macro(const TemplateMacro& macro, const TemplateArguments& given) {
    const TemplateStatement& statement = *macro.statement;
    budget_.bytes(kFrameBytes);
    Frame& frame = frames_.emplace_back(Frame{{}, macro.frame});
    if (given.positional.size() > statement.names.size())
      throw DataError(fmt::format("the macro {} takes {}, not {}", in_quotes(statement.text),
                                  counted(std::ssize(statement.names), "argument"), given.positional.size()));
    const std::size_t without_default = statement.names.size() - statement.defaults.size();
    for (std::size_t i = 0; i < statement.names.size(); ++i) {
      const std::string& name = statement.names[i];
      const TemplateValue* value = given.find(i, name.c_str());
      frame.variables[name] = value                  ? *value
                              : i >= without_default ? evaluate(*statement.defaults[i - without_default], frame)
                                                     : TemplateValue(TemplateUndefined{name});
    }
    if (const TemplateValue* caller = given.find(SIZE_MAX, "caller")) frame.variables["caller"] = *caller;
    TemplateText text;
    execute(statement.body, frame, text);
    return TemplateValue(std::move(text));
  }

  TemplateHeap heap_;
  TemplateBudget budget_;
  TemplateBuiltins builtins_;
  std::deque<Frame> frames_;  // kept until the end, since macros refer to them
  std::deque<TemplateMacro> macros_;
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace

struct ChatTemplate::Parsed {
  TemplateBody body;
};

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name, const std::tm& now)
    : parsed_(std::make_unique<Parsed>(Parsed{parse_template(source, name)})), name_(std::move(name)), now_(now) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  std::int64_t steps = kMostSteps;
  return render(variables, steps).text;
}

TemplateText ChatTemplate::render(const nlohmann::ordered_json& variables, std::int64_t& steps) const {
  const std::int64_t given = std::min(steps, kMostSteps);
  Rendering rendering(given, now_);
  try {
    TemplateText text = rendering.run(parsed_->body, variables);
    steps -= given - rendering.steps_left();
    return text;
  } catch (const DataError& e) {
    steps -= given - rendering.steps_left();
    throw DataError(fmt::format("{}, line {}: {}", name_, rendering.line(), e.what()));
  }
}

}  // namespace braid
