// The statements of chat templates.
#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_ast.h"
#include "data/text/template_expressions.h"

namespace braid {
namespace {

using Kind = TemplateStatement::Kind;
using TokenKind = TemplateToken::Kind;

constexpr int kDeepest = 100;

class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : in_(lex_template(source, name), name) {}

  TemplateBody run() {
    TemplateBody body = statements({});
    if (in_.token().kind != TokenKind::End) in_.refuse(fmt::format("unexpected {}", in_quotes(in_.token().text)));
    return body;
  }

 private:
  // Until a statement that begins with one of these words, which is left after its StatementBegin.
  TemplateBody statements(const std::vector<std::string>& ends) {
    if (++depth_ > kDeepest) in_.refuse("statements are nested too deep");
    TemplateBody body;
    while (true) {
      const TemplateToken& token = in_.token();
      if (token.kind == TokenKind::End) {
        if (!ends.empty()) in_.refuse(fmt::format("{} is missing", ends.back()));
        break;
      }
      const TemplateToken begin = in_.take();
      if (begin.kind == TokenKind::Text) {
        body.push_back({.kind = Kind::Text, .line = begin.line, .text = begin.text});
      } else if (begin.kind == TokenKind::OutputBegin) {
        body.push_back({.kind = Kind::Output, .line = begin.line, .value = in_.tuple_expression()});
        close(TokenKind::OutputEnd);
      } else {
        if (in_.token().kind == TokenKind::Name && contains(ends, in_.token().text)) break;
        body.push_back(statement(begin.line));
      }
    }
    --depth_;
    return body;
  }

  void close(TokenKind kind) {
    if (in_.token().kind != kind) in_.refuse(fmt::format("unexpected {} in a tag", in_quotes(in_.token().text)));
    in_.take();
  }
  void end_statement() { close(TokenKind::StatementEnd); }

  TemplateStatement statement(int line) {
    const std::string word = in_.expect_identifier();
    TemplateStatement made{.kind = Kind::Body, .line = line};
    if (word == "if") {
      parse_if(made);
    } else if (word == "for") {
      parse_for(made);
    } else if (word == "set") {
      parse_set(made);
    } else if (word == "macro") {
      parse_macro(made);
    } else if (word == "call") {
      parse_call(made);
    } else if (word == "generation") {  // marks what an assistant says; it renders as its body
      end_statement();
      made.body = statements({"endgeneration"});
      in_.take();
      end_statement();
    } else if (word == "break" || word == "continue") {
      made.kind = word == "break" ? Kind::Break : Kind::Continue;
      end_statement();
    } else {
      in_.refuse(
          fmt::format("the tag {} is not supported; known: if, for, set, macro, call, generation, break, "
                      "continue",
                      in_quotes(word)));
    }
    return made;
  }

  void parse_if(TemplateStatement& made) {
    made.kind = Kind::If;
    made.value = in_.tuple_expression();
    end_statement();
    made.body = statements({"elif", "else", "endif"});
    const int line = in_.token().line;
    const std::string word = in_.take().text;
    if (word == "elif") {
      if (++depth_ > kDeepest) in_.refuse("too many elif in a row");
      parse_if(made.otherwise.emplace_back(TemplateStatement{.kind = Kind::If, .line = line}));
      --depth_;
      return;
    }
    end_statement();
    if (word == "endif") return;
    made.otherwise = statements({"endif"});
    in_.take();
    end_statement();
  }

  void parse_for(TemplateStatement& made) {
    made.kind = Kind::For;
    do made.names.push_back(in_.expect_identifier());
    while (in_.skip_operator(","));
    if (!in_.skip_name("in")) in_.refuse("expected 'in'");
    made.value = in_.condition();
    if (in_.skip_name("if")) made.condition = in_.expression();
    if (in_.is_name("recursive")) in_.refuse("recursive loops are not supported");
    end_statement();
    made.body = statements({"else", "endfor"});
    const std::string word = in_.take().text;
    end_statement();
    if (word == "endfor") return;
    made.otherwise = statements({"endfor"});
    in_.take();
    end_statement();
  }

  void parse_set(TemplateStatement& made) {
    made.kind = Kind::Set;
    made.names.push_back(in_.expect_identifier());
    if (in_.skip_operator(".")) {
      made.is_item = true;
      made.names.push_back(in_.expect_identifier());
    }
    while (!made.is_item && in_.skip_operator(",")) made.names.push_back(in_.expect_identifier());
    if (in_.skip_operator("=")) {
      made.value = in_.tuple_expression();
      return end_statement();
    }
    end_statement();
    made.body = statements({"endset"});
    in_.take();
    end_statement();
  }

  void parse_macro(TemplateStatement& made) {
    made.kind = Kind::Macro;
    made.text = in_.expect_identifier();
    parse_parameters(made);
    end_statement();
    made.body = statements({"endmacro"});
    in_.take();
    if (in_.token().kind == TokenKind::Name) in_.take();  // endmacro may repeat the name
    end_statement();
  }

  void parse_call(TemplateStatement& made) {
    made.kind = Kind::Call;
    made.text = "caller";
    if (in_.is_operator("(")) parse_parameters(made);
    made.value = in_.expression();
    if (made.value->kind != TemplateExpression::Kind::Call) in_.refuse("the tag 'call' needs a call of a macro");
    end_statement();
    made.body = statements({"endcall"});
    in_.take();
    end_statement();
  }

  void parse_parameters(TemplateStatement& made) {
    in_.expect_operator("(");
    while (!in_.is_operator(")")) {
      made.names.push_back(in_.expect_identifier());
      if (in_.skip_operator("="))
        made.defaults.push_back(in_.expression());
      else if (!made.defaults.empty())
        in_.refuse("a parameter without a default follows one with a default");
      if (!in_.is_operator(")")) in_.expect_operator(",");
    }
    in_.expect_operator(")");
  }

  TemplateExpressionParser in_;
  int depth_ = 0;
};

}  // namespace

TemplateBody parse_template(std::string_view source, const std::string& name) { return Parser(source, name).run(); }

}  // namespace braid
