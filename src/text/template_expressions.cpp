#include "text/template_expressions.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

using Kind = TemplateExpression::Kind;
using TokenKind = TemplateToken::Kind;

constexpr int kDeepest = 100;      // of brackets
constexpr int kDeepestTree = 400;  // a + b + c + ... makes a tree as deep as it is long

}  // namespace

// Counts how deep the parser calls itself.
class TemplateExpressionParser::Deeper {
 public:
  explicit Deeper(TemplateExpressionParser& parser) : depth_(parser.depth_) {
    if (++depth_ > kDeepest) parser.refuse("expressions are nested too deep");
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;

 private:
  int& depth_;
};

void TemplateExpressionParser::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}, line {}: {}", name_, token().line, what));
}

bool TemplateExpressionParser::is_name(const char* word) const {
  return token().kind == TokenKind::Name && token().text == word;
}
bool TemplateExpressionParser::is_operator(const char* symbol) const {
  return token().kind == TokenKind::Operator && token().text == symbol;
}
bool TemplateExpressionParser::skip_name(const char* word) {
  const bool found = is_name(word);
  at_ += found;
  return found;
}
bool TemplateExpressionParser::skip_operator(const char* symbol) {
  const bool found = is_operator(symbol);
  at_ += found;
  return found;
}
void TemplateExpressionParser::expect_operator(const char* symbol) {
  if (!skip_operator(symbol)) refuse(fmt::format("expected '{}' before {}", symbol, in_quotes(token().text)));
}
std::string TemplateExpressionParser::expect_identifier() {
  if (token().kind != TokenKind::Name) refuse(fmt::format("expected a name before {}", in_quotes(token().text)));
  return take().text;
}

void TemplateExpressionParser::add(TemplateExpression& parent, Expression child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kDeepestTree) refuse("an expression is too long");
  parent.parts.push_back(std::move(child));
}

TemplateExpressionParser::Expression TemplateExpressionParser::make(Kind kind, std::string text,
                                                                    std::vector<Expression> parts) {
  auto expression = std::make_unique<TemplateExpression>();
  expression->kind = kind;
  expression->line = token().line;
  expression->text = std::move(text);
  for (Expression& part : parts) add(*expression, std::move(part));
  return expression;
}

TemplateExpressionParser::Expression TemplateExpressionParser::join(Expression left, const std::string& symbol,
                                                                    Expression right) {
  Expression result = make(Kind::Binary, symbol);
  add(*result, std::move(left));
  add(*result, std::move(right));
  return result;
}

TemplateExpressionParser::Expression TemplateExpressionParser::expression() {
  const Deeper deeper(*this);
  Expression value = either();
  while (skip_name("if")) {
    Expression result = make(Kind::Conditional);
    add(*result, std::move(value));
    add(*result, either());
    add(*result, skip_name("else") ? expression() : nullptr);
    value = std::move(result);
  }
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::tuple_expression() {
  Expression first = expression();
  if (!is_operator(",")) return first;
  Expression result = make(Kind::List);
  add(*result, std::move(first));
  while (skip_operator(",")) {
    if (token().kind == TokenKind::StatementEnd || token().kind == TokenKind::OutputEnd) break;
    add(*result, expression());
  }
  return result;
}

TemplateExpressionParser::Expression TemplateExpressionParser::condition() { return either(); }

TemplateExpressionParser::Expression TemplateExpressionParser::either() {
  Expression value = both();
  while (skip_name("or")) value = join(std::move(value), "or", both());
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::both() {
  Expression value = negation();
  while (skip_name("and")) value = join(std::move(value), "and", negation());
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::negation() {
  if (!skip_name("not")) return comparison();
  const Deeper deeper(*this);
  Expression result = make(Kind::Unary, "not");
  add(*result, negation());
  return result;
}

// a < b < c is not supported; Jinja means a < b and b < c.
TemplateExpressionParser::Expression TemplateExpressionParser::comparison() {
  const auto skip_comparison = [&]() -> std::string {
    for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
      if (skip_operator(symbol)) return symbol;
    if (skip_name("in")) return "in";
    const bool not_in = is_name("not") && tokens_[at_ + 1].kind == TokenKind::Name && tokens_[at_ + 1].text == "in";
    if (!not_in) return "";
    at_ += 2;
    return "not in";
  };
  Expression value = sum();
  const std::string symbol = skip_comparison();
  if (symbol.empty()) return value;
  value = join(std::move(value), symbol, sum());
  if (!skip_comparison().empty()) refuse("comparisons in a row are not supported; join them with 'and'");
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::sum() {
  Expression value = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const std::string symbol = take().text;
    value = join(std::move(value), symbol, concatenation());
  }
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::concatenation() {
  Expression value = product();
  while (skip_operator("~")) value = join(std::move(value), "~", product());
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::product() {
  Expression value = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const std::string symbol = take().text;
    value = join(std::move(value), symbol, power());
  }
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::power() {
  Expression value = unary(/*with_filters=*/true);
  while (skip_operator("**")) value = join(std::move(value), "**", unary(/*with_filters=*/true));
  return value;
}

TemplateExpressionParser::Expression TemplateExpressionParser::unary(bool with_filters) {
  Expression value;
  if (is_operator("-") || is_operator("+")) {
    const Deeper deeper(*this);
    const std::string symbol = take().text;
    value = make(Kind::Unary, symbol);
    add(*value, unary(/*with_filters=*/false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

TemplateExpressionParser::Expression TemplateExpressionParser::postfix(Expression value) {
  while (true) {
    if (skip_operator(".")) {
      Expression result = make(Kind::Attribute, token().kind == TokenKind::Integer ? take().text : expect_identifier());
      add(*result, std::move(value));
      value = std::move(result);
    } else if (skip_operator("[")) {
      value = item_of(std::move(value));
    } else if (is_operator("(")) {
      Expression result = make(Kind::Call);
      add(*result, std::move(value));
      arguments(*result);
      value = std::move(result);
    } else {
      return value;
    }
  }
}

TemplateExpressionParser::Expression TemplateExpressionParser::filters(Expression value) {
  while (true) {
    if (skip_operator("|")) {
      Expression result = make(Kind::Filter, expect_identifier());
      add(*result, std::move(value));
      if (is_operator("(")) arguments(*result);
      value = std::move(result);
    } else if (skip_name("is")) {
      value = test_of(std::move(value));
    } else if (is_operator("(")) {
      value = postfix(std::move(value));
    } else {
      return value;
    }
  }
}

TemplateExpressionParser::Expression TemplateExpressionParser::item_of(Expression value) {
  const auto bound = [&]() -> Expression { return is_operator(":") || is_operator("]") ? nullptr : expression(); };
  Expression first = bound();
  if (!is_operator(":")) {
    if (!first) refuse("expected an index");
    Expression result = make(Kind::Item);
    add(*result, std::move(value));
    add(*result, std::move(first));
    expect_operator("]");
    return result;
  }
  Expression result = make(Kind::Slice);
  add(*result, std::move(value));
  add(*result, std::move(first));
  for (int i = 0; i < 2; ++i) add(*result, skip_operator(":") ? bound() : nullptr);
  expect_operator("]");
  return result;
}

TemplateExpressionParser::Expression TemplateExpressionParser::test_of(Expression value) {
  const bool negated = skip_name("not");
  Expression result = make(Kind::Test, expect_identifier());
  add(*result, std::move(value));
  const bool starts_value = token().kind == TokenKind::String || token().kind == TokenKind::Integer ||
                            token().kind == TokenKind::Float || is_operator("[") || is_operator("{") ||
                            (token().kind == TokenKind::Name && !is_name("and") && !is_name("or") && !is_name("if") &&
                             !is_name("else") && !is_name("is") && !is_name("not") && !is_name("in"));
  if (is_operator("("))
    arguments(*result);
  else if (starts_value)
    add(*result, postfix(primary()));
  if (!negated) return result;
  Expression opposite = make(Kind::Unary, "not");
  add(*opposite, std::move(result));
  return opposite;
}

void TemplateExpressionParser::arguments(TemplateExpression& call) {
  const Deeper deeper(*this);
  expect_operator("(");
  while (!is_operator(")")) {
    const bool is_named =
        token().kind == TokenKind::Name && tokens_[at_ + 1].kind == TokenKind::Operator && tokens_[at_ + 1].text == "=";
    if (is_named) {
      const std::string name = take().text;
      expect_operator("=");
      Expression value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(name, std::move(value));
    } else {
      add(call, expression());
    }
    if (!is_operator(")")) expect_operator(",");
  }
  expect_operator(")");
}

TemplateExpressionParser::Expression TemplateExpressionParser::list(const char* close) {
  Expression result = make(Kind::List);
  while (!is_operator(close)) {
    add(*result, expression());
    if (!is_operator(close)) expect_operator(",");
  }
  expect_operator(close);
  return result;
}

TemplateExpressionParser::Expression TemplateExpressionParser::map() {
  Expression result = make(Kind::Map);
  while (!is_operator("}")) {
    add(*result, expression());
    expect_operator(":");
    add(*result, expression());
    if (!is_operator("}")) expect_operator(",");
  }
  expect_operator("}");
  return result;
}

TemplateExpressionParser::Expression TemplateExpressionParser::primary() {
  const Deeper deeper(*this);
  const auto constant = [&](TemplateValue value) {
    Expression result = make(Kind::Constant);
    result->constant = std::move(value);
    return result;
  };
  if (skip_operator("[")) return list("]");
  if (skip_operator("{")) return map();
  if (skip_operator("(")) {
    if (skip_operator(")")) return make(Kind::List);
    Expression first = expression();
    if (skip_operator(")")) return first;
    expect_operator(",");
    Expression rest = list(")");
    add(*rest, std::move(first));
    std::rotate(rest->parts.begin(), rest->parts.end() - 1, rest->parts.end());
    return rest;
  }
  const TemplateToken word = token();
  switch (word.kind) {
    case TokenKind::String: {
      std::string text = take().text;
      while (token().kind == TokenKind::String) text += take().text;
      return constant(TemplateValue(std::move(text)));
    }
    case TokenKind::Integer: {
      const auto integer = parse_int64(take().text);
      if (!integer) refuse(fmt::format("{} is too large", in_quotes(word.text)));
      return constant(TemplateValue(*integer));
    }
    case TokenKind::Float:
      return constant(TemplateValue(parse_double(take().text).value_or(0)));
    case TokenKind::Name:
      break;
    default:
      refuse(fmt::format("expected a value before {}", in_quotes(word.text)));
  }
  take();
  if (word.text == "true" || word.text == "True") return constant(TemplateValue(true));
  if (word.text == "false" || word.text == "False") return constant(TemplateValue(false));
  if (word.text == "none" || word.text == "None") return constant(TemplateNone{});
  return make(Kind::Name, word.text);
}

}  // namespace braid
