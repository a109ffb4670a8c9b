// Parses chat templates, with Jinja's precedence, into functions. A part has the line of the token after what it begins
// with.

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

using Value = TemplateValue;
using State = TemplateState;
using Scope = TemplateScope;
using Flow = TemplateFlow;
using Expression = TemplatePart<TemplateValue>;
using Arguments = TemplatePart<TemplateArguments>;
using Statement = TemplateStatement;
using TokenKind = TemplateToken::Kind;

constexpr int kDeepest = 100;     // of statements, of brackets
constexpr int kMostParts = 4000;  // of a tag: a + b + c + ... makes a tree as deep as it is long

Value lookup(State& s, const Scope& innermost, const std::string& name) {
  for (const Scope* scope = &innermost; scope; scope = scope->parent)
    if (const auto found = scope->variables.find(name); found != scope->variables.end()) return found->second;
  if (TemplateFunction function = builtin_function(s, name)) return function;
  return TemplateUndefined{name};
}

void assign(State& s, const std::vector<std::string>& names, const Value& value, Scope& scope) {
  const TemplateList parts = names.size() == 1 ? TemplateList{value} : s.items_of(value);
  if (parts.size() != names.size())
    throw DataError(fmt::format("{} cannot become {}", counted(std::ssize(parts), "value"),
                                counted(std::ssize(names), "variable")));
  for (std::size_t i = 0; i < names.size(); ++i) scope.variables[names[i]] = parts[i];
}

TemplateMap loop_state(const TemplateList& items, std::size_t i) {
  const std::int64_t index = static_cast<std::int64_t>(i), count = std::ssize(items);
  return {.items = {{"index", index + 1},
                    {"index0", index},
                    {"revindex", count - index},
                    {"revindex0", count - index - 1},
                    {"first", index == 0},
                    {"last", index + 1 == count},
                    {"length", count},
                    {"previtem", i > 0 ? items[i - 1] : Value(TemplateUndefined{"loop.previtem"})},
                    {"nextitem", i + 1 < items.size() ? items[i + 1] : Value(TemplateUndefined{"loop.nextitem"})}}};
}

TemplateText text_written_by(const Statement& body, State& s, Scope& scope) {
  TemplateText text;
  body(s, scope, text);
  return text;
}

// What {% macro %} and {% call %} define.
struct Macro {
  std::string name;
  std::vector<std::string> parameters{};
  std::vector<Expression> defaults{};  // of the last parameters
  Statement body{};

  TemplateFunction in(State& s, Scope& defined) const {
    return template_function([macro = *this, &s, &defined](const TemplateArguments& given) -> Value {
      const auto& [name, parameters, defaults, body] = macro;
      Scope& scope = s.scope(&defined);
      if (given.positional.size() > parameters.size())
        throw DataError(fmt::format("the macro {} takes {}, not {}", in_quotes(name),
                                    counted(std::ssize(parameters), "argument"), given.positional.size()));
      const std::size_t without_default = parameters.size() - defaults.size();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Value* value = given.find(i, parameters[i].c_str());
        scope.variables[parameters[i]] = value                  ? *value
                                         : i >= without_default ? defaults[i - without_default](s, scope)
                                                                : Value(TemplateUndefined{parameters[i]});
      }
      if (const Value* caller = given.find(SIZE_MAX, "caller")) scope.variables["caller"] = *caller;
      return text_written_by(body, s, scope);
    });
  }
};

class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : tokens_(lex_template(source, name)), name_(name) {}

  Statement run() { return statements({}); }

 private:
  TemplateDepth deeper(int& depth, const char* what) {
    if (depth == kDeepest) refuse(what);
    return TemplateDepth(depth);
  }
  TemplateDepth deeper_expression() { return deeper(expression_depth_, "expressions are nested too deep"); }

  const TemplateToken& token() const { return tokens_[at_]; }
  TemplateToken take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  // Whether the token is this name or this operator.
  static bool is(const TemplateToken& token, std::string_view word) {
    return (token.kind == TokenKind::Name || token.kind == TokenKind::Operator) && token.text == word;
  }
  bool is(std::string_view word) const { return is(token(), word); }
  bool skip(std::string_view word) {
    const bool found = is(word);
    at_ += found;
    return found;
  }
  // The first of these that the token is, which is read; null: none.
  const char* skip_any(std::initializer_list<const char*> words) {
    for (const char* word : words)
      if (skip(word)) return word;
    return nullptr;
  }
  void expect(const char* symbol) {
    if (!skip(symbol)) refuse(fmt::format("expected '{}' before {}", symbol, in_quotes(token().text)));
  }
  std::string expect_identifier() {
    if (token().kind != TokenKind::Name) refuse(fmt::format("expected a name before {}", in_quotes(token().text)));
    return take().text;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", name_, token().line, what));
  }

  // Reads statements up to a tag that begins with one of these words; the words remain to be read.
  Statement statements(const std::vector<std::string>& ends) {
    const TemplateDepth depth = deeper(statement_depth_, "statements are nested too deep");
    std::vector<std::pair<int, Statement>> body;  // with their lines
    while (token().kind != TokenKind::End || !ends.empty()) {
      if (token().kind == TokenKind::End) refuse(fmt::format("{} is missing", ends.back()));
      const TemplateToken begin = take();
      parts_ = 0;
      Statement next;
      if (begin.kind == TokenKind::Text) {
        next = written([text = TemplateText{begin.text, {}}](State&, Scope&) { return text; });
      } else if (begin.text == "{{") {
        next = written([value = tuple_expression()](State& s, Scope& scope) { return value(s, scope).text(); });
        expect("}}");
      } else if (token().kind == TokenKind::Name && contains(ends, token().text)) {
        break;
      } else {
        next = statement();
      }
      body.emplace_back(begin.line, next);
    }
    return [body = std::move(body)](State& s, Scope& scope, TemplateText& out) {
      const TemplateDepth depth = s.deeper();
      for (const auto& [line, statement] : body) {
        s.step();
        s.line = line;
        if (const Flow flow = statement(s, scope, out); flow != Flow::Next) return flow;
      }
      return Flow::Next;
    };
  }

  template <class Text>
  static Statement written(Text text) {
    return [text = std::move(text)](State& s, Scope& scope, TemplateText& out) {
      const TemplateText added = text(s, scope);
      s.bytes(added.text.size());
      out.append(added);
      return Flow::Next;
    };
  }

  // The rest of a tag, and the statements up to the tag `end`, which is read, too.
  Statement body_until(const std::string& end) {
    expect("%}");
    Statement body = statements({end});
    take();
    if (end == "endmacro" && token().kind == TokenKind::Name) take();  // it may repeat the macro's name
    expect("%}");
    return body;
  }

  Statement statement() {
    const std::string word = expect_identifier();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro_statement();
    if (word == "call") return call_statement();
    if (word == "generation") return body_until("endgeneration");  // marks what an assistant says
    if (word != "break" && word != "continue")
      refuse(fmt::format("the tag {} is not supported; known: if, for, set, macro, call, generation, break, continue",
                         in_quotes(word)));
    expect("%}");
    return [flow = word == "break" ? Flow::Break : Flow::Continue](State&, Scope&, TemplateText&) { return flow; };
  }

  Statement if_statement() {
    const Expression condition = tuple_expression();
    expect("%}");
    const Statement body = statements({"elif", "else", "endif"});
    Statement otherwise;
    if (skip("elif")) {
      const TemplateDepth depth = deeper(statement_depth_, "too many elif in a row");
      otherwise = if_statement();
    } else {
      otherwise = else_or("endif");
    }
    return [=](State& s, Scope& scope, TemplateText& out) {
      return (condition(s, scope).truth() ? body : otherwise)(s, scope, out);
    };
  }

  // Reads the rest of a statement: what follows "else", or `end`, after which there is nothing to do.
  Statement else_or(const char* end) {
    if (take().text != end) return body_until(end);
    expect("%}");
    return [](State&, Scope&, TemplateText&) { return Flow::Next; };
  }

  Statement for_statement() {
    const std::vector<std::string> names = identifiers();
    if (!skip("in")) refuse("expected 'in'");
    const Expression list = either();  // without a trailing "if"
    const Expression condition = skip("if") ? expression() : Expression();
    if (is("recursive")) refuse("recursive loops are not supported");
    expect("%}");
    const Statement body = statements({"else", "endfor"}), otherwise = else_or("endfor");
    return [=](State& s, Scope& outer, TemplateText& out) {
      TemplateList items = s.items_of(list(s, outer));
      Scope& scope = s.scope(&outer);
      if (condition)
        std::erase_if(items, [&](const Value& item) {
          assign(s, names, item, scope);
          return !condition(s, scope).truth();
        });
      if (items.empty()) return otherwise(s, outer, out);
      TemplateMap* state = s.keep(TemplateMap{}).map();
      for (std::size_t i = 0; i < items.size(); ++i) {
        scope.variables.clear();
        *state = loop_state(items, i);
        scope.variables["loop"] = state;
        assign(s, names, items[i], scope);
        if (body(s, scope, out) == Flow::Break) break;
      }
      return Flow::Next;
    };
  }

  std::vector<std::string> identifiers() {
    std::vector<std::string> names;
    do names.push_back(expect_identifier());
    while (skip(","));
    return names;
  }

  Statement set_statement() {
    const std::vector<std::string> names = identifiers();
    const std::string item = names.size() == 1 && skip(".") ? expect_identifier() : "";  // of a namespace
    Expression value;
    if (skip("=")) {
      value = tuple_expression();
      expect("%}");
    } else {
      value = [body = body_until("endset")](State& s, Scope& scope) -> Value {
        return text_written_by(body, s, s.scope(&scope));
      };
    }
    return [=](State& s, Scope& scope, TemplateText&) {
      if (item.empty())
        assign(s, names, value(s, scope), scope);
      else
        set_item(names[0], lookup(s, scope, names[0]), item, value(s, scope));
      return Flow::Next;
    };
  }

  static void set_item(const std::string& name, const Value& target, const std::string& item, const Value& value) {
    TemplateMap* map = target.map();
    if (!map || !map->is_namespace)
      throw DataError(fmt::format("{} is not a namespace, so {} cannot be set", in_quotes(name), in_quotes(item)));
    map->put(item, value);
  }

  Statement macro_statement() {
    Macro macro = {.name = expect_identifier()};
    parameters(macro);
    macro.body = body_until("endmacro");
    return [macro](State& s, Scope& scope, TemplateText&) {
      scope.variables[macro.name] = macro.in(s, scope);
      return Flow::Next;
    };
  }

  Statement call_statement() {
    Macro caller = {.name = "caller"};
    if (is("(")) parameters(caller);
    Expression called = primary();
    while (skip(".")) called = attribute(called);
    if (!is("(")) refuse("the tag 'call' needs a call of a macro");
    const Arguments given = arguments();
    caller.body = body_until("endcall");
    return written([=](State& s, Scope& scope) {
      TemplateArguments all = given(s, scope);
      all.named.emplace_back("caller", caller.in(s, scope));
      return call_value(called(s, scope), all).text();
    });
  }

  // Reads parts with commas between them, and `close` after them.
  template <class Read>
  void read_up_to(const char* close, const Read& read) {
    while (!is(close)) {
      read();
      if (!is(close)) expect(",");
    }
    expect(close);
  }

  void parameters(Macro& macro) {
    expect("(");
    read_up_to(")", [&] {
      macro.parameters.push_back(expect_identifier());
      if (skip("="))
        macro.defaults.push_back(expression());
      else if (!macro.defaults.empty())
        refuse("a parameter without a default follows one with a default");
    });
  }

  template <class Run>
  Expression part(Run run) {
    if (++parts_ > kMostParts) refuse("an expression is too long");
    return [line = token().line, run = std::move(run)](State& s, Scope& scope) -> Value {
      const TemplateDepth depth = s.deeper();
      s.step();
      s.line = line;
      return run(s, scope);
    };
  }
  Expression constant(Value value) {
    return part([value = std::move(value)](State&, Scope&) { return value; });
  }

  // a if b else c
  Expression expression() {
    const TemplateDepth depth = deeper_expression();
    Expression value = either();
    while (skip("if")) {
      const Expression condition = either(), otherwise = skip("else") ? expression() : Expression();
      value = part([=](State& s, Scope& scope) -> Value {
        if (condition(s, scope).truth()) return value(s, scope);
        return otherwise ? otherwise(s, scope) : Value(TemplateUndefined{"a condition without else"});
      });
    }
    return value;
  }

  // An expression, or a list without brackets: a, b, c.
  Expression tuple_expression() {
    std::vector<Expression> items = {expression()};
    if (!is(",")) return items[0];
    while (skip(",") && !is("%}") && !is("}}")) items.push_back(expression());
    return list_of(items);
  }

  Expression list_of(const std::vector<Expression>& parts) {
    return part([parts](State& s, Scope& scope) {
      return s.keep(vector_of<TemplateValue>(parts, [&](const Expression& each) { return each(s, scope); }));
    });
  }

  Expression binary(const std::string& symbol, const Expression& left, const Expression& right) {
    return part([=](State& s, Scope& scope) {
      Value first = left(s, scope);
      if (symbol == "and" || symbol == "or") return first.truth() == (symbol == "and") ? right(s, scope) : first;
      return apply_operator(s, symbol, first, right(s, scope));
    });
  }

  // Operands with these operators between them, which bind to the left.
  Expression chain(std::initializer_list<const char*> symbols, Expression (Parser::*operand)()) {
    Expression value = (this->*operand)();
    while (const char* symbol = skip_any(symbols)) value = binary(symbol, value, (this->*operand)());
    return value;
  }
  Expression either() { return chain({"or"}, &Parser::both); }
  Expression both() { return chain({"and"}, &Parser::negation); }
  Expression sum() { return chain({"+", "-"}, &Parser::concatenation); }
  Expression concatenation() { return chain({"~"}, &Parser::product); }
  Expression product() { return chain({"*", "/", "//", "%"}, &Parser::power); }
  Expression power() { return chain({"**"}, &Parser::filtered); }

  Expression negation() {
    if (!skip("not")) return comparison();
    const TemplateDepth depth = deeper_expression();
    return part([value = negation()](State& s, Scope& scope) { return !value(s, scope).truth(); });
  }

  // a < b < c is not supported; Jinja means a < b and b < c.
  Expression comparison() {
    const auto skip_comparison = [&]() -> const char* {
      if (const char* symbol = skip_any({"==", "!=", "<=", ">=", "<", ">", "in"})) return symbol;
      if (!is("not") || !is(tokens_[at_ + 1], "in")) return nullptr;
      at_ += 2;
      return "not in";
    };
    Expression value = sum();
    const char* symbol = skip_comparison();
    if (!symbol) return value;
    value = binary(symbol, value, sum());
    if (skip_comparison()) refuse("comparisons in a row are not supported; join them with 'and'");
    return value;
  }

  Expression unary() {
    if (!is("-") && !is("+")) return postfix(primary());
    const TemplateDepth depth = deeper_expression();
    const bool is_negative = take().text == "-";
    return postfix(part([is_negative, value = unary()](State& s, Scope& scope) {
      return is_negative ? negative(value(s, scope)) : value(s, scope);
    }));
  }

  Expression postfix(Expression value) {
    while (true) {
      if (skip(".")) {
        value = attribute(value);
      } else if (skip("[")) {
        value = item(value);
      } else if (is("(")) {
        const Arguments given = arguments();
        value = part([=](State& s, Scope& scope) {
          const TemplateArguments all = given(s, scope);
          return call_value(value(s, scope), all);
        });
      } else {
        return value;
      }
    }
  }

  Expression attribute(const Expression& value) {
    const std::string name = token().kind == TokenKind::Number ? take().text : expect_identifier();
    return part([=](State& s, Scope& scope) { return attribute_of(s, value(s, scope), name); });
  }

  Expression filtered() {
    Expression value = unary();
    while (true) {
      if (skip("|")) {
        const std::string name = expect_identifier();
        const Arguments given = is("(") ? arguments() : no_arguments();
        value = part([=](State& s, Scope& scope) {
          const Value self = value(s, scope);
          return apply_filter(s, name, self, given(s, scope));
        });
      } else if (skip("is")) {
        value = test(value);
      } else if (is("(")) {
        value = postfix(value);
      } else {
        return value;
      }
    }
  }

  Expression test(const Expression& value) {
    const bool negated = skip("not");
    const std::string name = expect_identifier();
    Arguments given = no_arguments();
    if (is("("))
      given = arguments();
    else if (starts_value())
      given = [other = postfix(primary())](State& s, Scope& scope) { return TemplateArguments{{other(s, scope)}, {}}; };
    return part([=](State& s, Scope& scope) {
      const Value self = value(s, scope);
      return apply_test(s, name, self, given(s, scope)) != negated;
    });
  }
  bool starts_value() const {
    const TokenKind kind = token().kind;
    if (kind == TokenKind::Operator) return is("[") || is("{");
    static const std::vector<std::string> words = {"and", "or", "if", "else", "is", "not", "in"};
    return kind == TokenKind::Name ? !contains(words, token().text)
                                   : kind == TokenKind::String || kind == TokenKind::Number;
  }

  Expression item(const Expression& value) {
    const auto bound = [&]() -> Expression { return is(":") || is("]") ? Expression() : expression(); };
    std::array<Expression, 3> bounds = {bound()};
    const bool is_slice = is(":");
    if (!is_slice && !bounds[0]) refuse("expected an index");
    for (std::size_t i = 1; is_slice && i < bounds.size(); ++i)
      if (skip(":")) bounds[i] = bound();
    expect("]");
    return part([=](State& s, Scope& scope) {
      const Value container = value(s, scope);
      if (!is_slice) return item_of(s, container, bounds[0](s, scope));
      std::array<Value, 3> given;
      for (std::size_t i = 0; i < given.size(); ++i) given[i] = bounds[i] ? bounds[i](s, scope) : Value(TemplateNone{});
      return slice_of(s, container, given);
    });
  }

  static Arguments no_arguments() {
    return [](State&, Scope&) { return TemplateArguments(); };
  }

  Arguments arguments() {
    const TemplateDepth depth = deeper_expression();
    std::vector<std::pair<bool, Expression>> positional;  // with whether it is *items
    std::vector<std::pair<std::string, Expression>> named;
    expect("(");
    read_up_to(")", [&] {
      if (token().kind == TokenKind::Name && is(tokens_[at_ + 1], "=")) {
        const std::string name = take().text;
        expect("=");
        named.emplace_back(name, expression());
      } else {
        const bool is_list = skip("*");
        positional.emplace_back(is_list, expression());
      }
    });
    return [=](State& s, Scope& scope) {
      TemplateArguments given;
      for (const auto& [is_list, value] : positional) {
        const Value one = value(s, scope);
        for (const Value& each : is_list ? s.items_of(one) : TemplateList{one}) given.positional.push_back(each);
      }
      for (const auto& [name, value] : named) given.named.emplace_back(name, value(s, scope));
      return given;
    };
  }

  // Reads a list whose opening bracket has been read.
  Expression list(const char* close, std::vector<Expression> items = {}) {
    read_up_to(close, [&] { items.push_back(expression()); });
    return list_of(items);
  }

  Expression map() {
    std::vector<std::pair<Expression, Expression>> entries;
    read_up_to("}", [&] {
      const Expression key = expression();
      expect(":");
      entries.emplace_back(key, expression());
    });
    return part([entries](State& s, Scope& scope) {
      TemplateMap items;
      for (const auto& [key_part, value] : entries) {
        const Value key = key_part(s, scope);
        if (!key.string()) items.other_keys.emplace_back(to_text(key), key);
        items.put(to_text(key), value(s, scope));
      }
      return s.keep(std::move(items));
    });
  }

  Expression primary() {
    const TemplateDepth depth = deeper_expression();
    if (skip("[")) return list("]");
    if (skip("{")) return map();
    if (skip("(")) {
      if (skip(")")) return list_of({});
      Expression first = expression();
      if (skip(")")) return first;
      expect(",");
      return list(")", {first});
    }
    const TemplateToken word = token();
    switch (word.kind) {
      case TokenKind::String: {
        std::string text = take().text;
        while (token().kind == TokenKind::String) text += take().text;
        return constant(std::move(text));
      }
      case TokenKind::Number: {
        if (take().text.find('.') != std::string::npos) return constant(parse_double(word.text).value_or(0));
        const auto integer = parse_int64(word.text);
        if (!integer) refuse(fmt::format("{} is too large", in_quotes(word.text)));
        return constant(*integer);
      }
      case TokenKind::Name:
        take();
        if (word.text == "true" || word.text == "True") return constant(true);
        if (word.text == "false" || word.text == "False") return constant(false);
        if (word.text == "none" || word.text == "None") return constant(TemplateNone{});
        return part([name = word.text](State& s, Scope& scope) { return lookup(s, scope, name); });
      default: refuse(fmt::format("expected a value before {}", in_quotes(word.text)));
    }
  }

  const std::vector<TemplateToken> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  int statement_depth_ = 0, expression_depth_ = 0;
  int parts_ = 0;  // of the tag
};

}  // namespace

TemplateStatement parse_template(std::string_view source, const std::string& name) {
  return Parser(source, name).run();
}

}  // namespace braid
