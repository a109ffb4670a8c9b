// Parses the expressions of chat templates, with Jinja's precedence.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/text/template_ast.h"
#include "data/text/template_lexer.h"

namespace braid {

class TemplateExpressionParser {
 public:
  using Expression = std::unique_ptr<TemplateExpression>;

  TemplateExpressionParser(std::vector<TemplateToken> tokens, std::string name)
      : tokens_(std::move(tokens)), name_(std::move(name)) {}

  Expression expression();        // a if b else c
  Expression tuple_expression();  // also a, b, c
  Expression condition();         // without a trailing "if": the list of a loop

  const TemplateToken& token() const { return tokens_[at_]; }
  TemplateToken take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_name(const char* word) const;
  bool is_operator(const char* symbol) const;
  bool skip_name(const char* word);
  bool skip_operator(const char* symbol);
  void expect_operator(const char* symbol);
  std::string expect_identifier();
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  // Counts how deep the parser calls itself.
  class Deeper {
   public:
    explicit Deeper(TemplateExpressionParser& parser);
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;

   private:
    int& depth_;
  };
  Expression make(TemplateExpression::Kind kind, std::string text = "", std::vector<Expression> parts = {});
  Expression join(Expression left, const std::string& symbol, Expression right);
  void add(TemplateExpression& parent, Expression child);

  Expression either();
  Expression both();
  Expression negation();
  Expression comparison();
  Expression sum();
  Expression concatenation();
  Expression product();
  Expression power();
  Expression unary(bool with_filters);
  Expression postfix(Expression value);
  Expression filters(Expression value);
  Expression primary();
  Expression item_of(Expression value);
  Expression test_of(Expression value);
  void arguments(TemplateExpression& call);
  Expression list(const char* close);
  Expression map();

  const std::vector<TemplateToken> tokens_;
  const std::string name_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace braid
