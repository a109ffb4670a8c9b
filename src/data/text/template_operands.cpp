// What the operators of an expression apply to: values, and their attributes, items, calls, filters and tests.
#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_expressions.h"

namespace braid {
namespace {

using Kind = TemplateExpression::Kind;
using TokenKind = TemplateToken::Kind;

}  // namespace

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
    } else if (skip_operator("*")) {
      Expression items = make(Kind::Unpacked);
      add(*items, expression());
      add(call, std::move(items));
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
