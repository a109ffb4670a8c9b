#include "data/text/template_expressions.h"

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

TemplateExpressionParser::Deeper::Deeper(TemplateExpressionParser& parser) : depth_(parser.depth_) {
  if (depth_ == kDeepest) parser.refuse("expressions are nested too deep");
  ++depth_;
}

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

}  // namespace braid
