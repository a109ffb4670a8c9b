// Parses chat templates, with Jinja's precedence. An expression has the line of the token after what it begins with.
#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

using Expression = std::unique_ptr<TemplateExpression>;
using Kind = TemplateExpression::Kind;
using StatementKind = TemplateStatement::Kind;
using TokenKind = TemplateToken::Kind;

constexpr int kDeepestStatement = 100;
constexpr int kDeepest = 100;      // of brackets
constexpr int kDeepestTree = 400;  // a + b + c + ... makes a tree as deep as it is long

class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : tokens_(lex_template(source, name)), name_(name) {}

  TemplateBody run() {
    TemplateBody body = statements({});
    if (token().kind != TokenKind::End) refuse(fmt::format("unexpected {}", in_quotes(token().text)));
    return body;
  }

 private:
  // Counts how deep the parser of expressions calls itself.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : depth_(parser.expression_depth_) {
      if (depth_ == kDeepest) parser.refuse("expressions are nested too deep");
      ++depth_;
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;

   private:
    int& depth_;
  };

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

  // Until a statement that begins with one of these words, which is left after its StatementBegin.
  TemplateBody statements(const std::vector<std::string>& ends) {
    if (++statement_depth_ > kDeepestStatement) refuse("statements are nested too deep");
    TemplateBody body;
    while (true) {
      if (token().kind == TokenKind::End) {
        if (!ends.empty()) refuse(fmt::format("{} is missing", ends.back()));
        break;
      }
      const TemplateToken begin = take();
      if (begin.kind == TokenKind::Text) {
        body.push_back({.kind = StatementKind::Text, .line = begin.line, .text = begin.text});
      } else if (begin.kind == TokenKind::OutputBegin) {
        body.push_back({.kind = StatementKind::Output, .line = begin.line, .value = tuple_expression()});
        close(TokenKind::OutputEnd);
      } else {
        if (token().kind == TokenKind::Name && contains(ends, token().text)) break;
        statement(body.emplace_back(TemplateStatement{.kind = StatementKind::Body, .line = begin.line}));
      }
    }
    --statement_depth_;
    return body;
  }

  // The rest of a tag, and the statements up to the tag `end`, which is read, too.
  TemplateBody body_until(const std::string& end) {
    end_statement();
    TemplateBody body = statements({end});
    take();
    if (end == "endmacro" && token().kind == TokenKind::Name) take();  // it may repeat the macro's name
    end_statement();
    return body;
  }

  void close(TokenKind kind) {
    if (token().kind != kind) refuse(fmt::format("unexpected {} in a tag", in_quotes(token().text)));
    take();
  }
  void end_statement() { close(TokenKind::StatementEnd); }

  void statement(TemplateStatement& made) {
    const std::string word = expect_identifier();
    if (word == "if") return parse_if(made);
    if (word == "for") return parse_for(made);
    if (word == "set") return parse_set(made);
    if (word == "macro") return parse_macro(made);
    if (word == "call") return parse_call(made);
    if (word == "generation") {  // marks what an assistant says; it renders as its body
      made.body = body_until("endgeneration");
    } else if (word == "break" || word == "continue") {
      made.kind = word == "break" ? StatementKind::Break : StatementKind::Continue;
      end_statement();
    } else {
      refuse(fmt::format("the tag {} is not supported; known: if, for, set, macro, call, generation, break, continue",
                         in_quotes(word)));
    }
  }

  void parse_if(TemplateStatement& made) {
    made.kind = StatementKind::If;
    made.value = tuple_expression();
    end_statement();
    made.body = statements({"elif", "else", "endif"});
    const int line = token().line;
    const std::string word = take().text;
    if (word == "endif") return end_statement();
    if (word == "else") {
      made.otherwise = body_until("endif");
      return;
    }
    if (++statement_depth_ > kDeepestStatement) refuse("too many elif in a row");
    parse_if(made.otherwise.emplace_back(TemplateStatement{.kind = StatementKind::If, .line = line}));
    --statement_depth_;
  }

  void parse_for(TemplateStatement& made) {
    made.kind = StatementKind::For;
    do made.names.push_back(expect_identifier());
    while (skip(","));
    if (!skip("in")) refuse("expected 'in'");
    made.value = either();  // without a trailing "if"
    if (skip("if")) made.condition = expression();
    if (is("recursive")) refuse("recursive loops are not supported");
    end_statement();
    made.body = statements({"else", "endfor"});
    if (take().text == "endfor") return end_statement();
    made.otherwise = body_until("endfor");
  }

  void parse_set(TemplateStatement& made) {
    made.kind = StatementKind::Set;
    made.names.push_back(expect_identifier());
    if (skip(".")) {
      made.is_item = true;
      made.names.push_back(expect_identifier());
    }
    while (!made.is_item && skip(",")) made.names.push_back(expect_identifier());
    if (skip("=")) {
      made.value = tuple_expression();
      return end_statement();
    }
    made.body = body_until("endset");
  }

  void parse_macro(TemplateStatement& made) {
    made.kind = StatementKind::Macro;
    made.text = expect_identifier();
    parse_parameters(made);
    made.body = body_until("endmacro");
  }

  void parse_call(TemplateStatement& made) {
    made.kind = StatementKind::Call;
    made.text = "caller";
    if (is("(")) parse_parameters(made);
    made.value = expression();
    if (made.value->kind != Kind::Call) refuse("the tag 'call' needs a call of a macro");
    made.body = body_until("endcall");
  }

  void parse_parameters(TemplateStatement& made) {
    expect("(");
    while (!is(")")) {
      made.names.push_back(expect_identifier());
      if (skip("="))
        made.defaults.push_back(expression());
      else if (!made.defaults.empty())
        refuse("a parameter without a default follows one with a default");
      if (!is(")")) expect(",");
    }
    expect(")");
  }

  void add(TemplateExpression& parent, Expression child) const {
    if (child) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kDeepestTree) refuse("an expression is too long");
    parent.parts.push_back(std::move(child));
  }

  template <class... Parts>
  Expression make(Kind kind, std::string text, Parts... parts) const {
    auto expression = std::make_unique<TemplateExpression>();
    expression->kind = kind;
    expression->line = token().line;
    expression->text = std::move(text);
    (add(*expression, std::move(parts)), ...);
    return expression;
  }
  Expression constant(TemplateValue value) const {
    Expression result = make(Kind::Constant, "");
    result->constant = std::move(value);
    return result;
  }

  // a if b else c
  Expression expression() {
    const Deeper deeper(*this);
    Expression value = either();
    while (skip("if")) {
      value = make(Kind::Conditional, "", std::move(value));
      add(*value, either());
      add(*value, skip("else") ? expression() : nullptr);
    }
    return value;
  }

  // Also a, b, c.
  Expression tuple_expression() {
    Expression first = expression();
    if (!is(",")) return first;
    Expression result = make(Kind::List, "", std::move(first));
    while (skip(",")) {
      if (token().kind == TokenKind::StatementEnd || token().kind == TokenKind::OutputEnd) break;
      add(*result, expression());
    }
    return result;
  }

  // Operands with these operators between them, which bind to the left.
  Expression chain(std::initializer_list<const char*> symbols, Expression (Parser::*operand)()) {
    Expression value = (this->*operand)();
    while (const char* symbol = skip_any(symbols)) {
      Expression right = (this->*operand)();
      value = make(Kind::Binary, symbol, std::move(value), std::move(right));
    }
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
    const Deeper deeper(*this);
    Expression result = make(Kind::Unary, "not");
    add(*result, negation());
    return result;
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
    Expression right = sum();
    value = make(Kind::Binary, symbol, std::move(value), std::move(right));
    if (skip_comparison()) refuse("comparisons in a row are not supported; join them with 'and'");
    return value;
  }

  Expression filtered() { return filters(unary()); }

  Expression unary() {
    if (!is("-") && !is("+")) return postfix(primary());
    const Deeper deeper(*this);
    const std::string symbol = take().text;
    Expression value = make(Kind::Unary, symbol);
    add(*value, unary());
    return postfix(std::move(value));
  }

  Expression postfix(Expression value) {
    while (true) {
      if (skip(".")) {
        const std::string name = token().kind == TokenKind::Integer ? take().text : expect_identifier();
        value = make(Kind::Attribute, name, std::move(value));
      } else if (skip("[")) {
        value = item_of(std::move(value));
      } else if (is("(")) {
        value = make(Kind::Call, "", std::move(value));
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  Expression filters(Expression value) {
    while (true) {
      if (skip("|")) {
        const std::string name = expect_identifier();
        value = make(Kind::Filter, name, std::move(value));
        if (is("(")) arguments(*value);
      } else if (skip("is")) {
        value = test_of(std::move(value));
      } else if (is("(")) {
        value = postfix(std::move(value));
      } else {
        return value;
      }
    }
  }

  Expression item_of(Expression value) {
    const auto bound = [&]() -> Expression { return is(":") || is("]") ? nullptr : expression(); };
    Expression first = bound();
    const bool is_slice = is(":");
    if (!is_slice && !first) refuse("expected an index");
    Expression result = make(is_slice ? Kind::Slice : Kind::Item, "", std::move(value), std::move(first));
    for (int i = 0; is_slice && i < 2; ++i) add(*result, skip(":") ? bound() : nullptr);
    expect("]");
    return result;
  }

  Expression test_of(Expression value) {
    const bool negated = skip("not");
    const std::string name = expect_identifier();
    Expression result = make(Kind::Test, name, std::move(value));
    if (is("("))
      arguments(*result);
    else if (starts_value())
      add(*result, postfix(primary()));
    return negated ? make(Kind::Unary, "not", std::move(result)) : std::move(result);
  }
  bool starts_value() const {
    const TokenKind kind = token().kind;
    if (kind == TokenKind::Operator) return is("[") || is("{");
    static const std::vector<std::string> words = {"and", "or", "if", "else", "is", "not", "in"};
    return kind == TokenKind::Name
               ? !contains(words, token().text)
               : kind == TokenKind::String || kind == TokenKind::Integer || kind == TokenKind::Float;
  }

  void arguments(TemplateExpression& call) {
    const Deeper deeper(*this);
    expect("(");
    while (!is(")")) {
      if (token().kind == TokenKind::Name && is(tokens_[at_ + 1], "=")) {
        const std::string name = take().text;
        expect("=");
        Expression value = expression();
        call.depth = std::max(call.depth, value->depth + 1);
        call.named.emplace_back(name, std::move(value));
      } else if (skip("*")) {
        Expression items = make(Kind::Unpacked, "");
        add(*items, expression());
        add(call, std::move(items));
      } else {
        add(call, expression());
      }
      if (!is(")")) expect(",");
    }
    expect(")");
  }

  // The rest of a list; or of a map, whose parts are keys and values in turn.
  Expression items(Expression result, const char* close) {
    while (!is(close)) {
      add(*result, expression());
      if (result->kind == Kind::Map) {
        expect(":");
        add(*result, expression());
      }
      if (!is(close)) expect(",");
    }
    expect(close);
    return result;
  }

  Expression primary() {
    const Deeper deeper(*this);
    if (skip("[")) return items(make(Kind::List, ""), "]");
    if (skip("{")) return items(make(Kind::Map, ""), "}");
    if (skip("(")) {
      if (skip(")")) return make(Kind::List, "");
      Expression first = expression();
      if (skip(")")) return first;
      expect(",");
      return items(make(Kind::List, "", std::move(first)), ")");
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
        take();
        if (word.text == "true" || word.text == "True") return constant(TemplateValue(true));
        if (word.text == "false" || word.text == "False") return constant(TemplateValue(false));
        if (word.text == "none" || word.text == "None") return constant(TemplateNone{});
        return make(Kind::Name, word.text);
      default:
        refuse(fmt::format("expected a value before {}", in_quotes(word.text)));
    }
  }

  const std::vector<TemplateToken> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  int statement_depth_ = 0, expression_depth_ = 0;
};

}  // namespace

TemplateBody parse_template(std::string_view source, const std::string& name) { return Parser(source, name).run(); }

}  // namespace braid
