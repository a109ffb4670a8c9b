// Where the answers of a conversation are in its text, and the targets that follow from it.
#pragma once

#include <string>
#include <vector>

#include "data/text/chat_formats.h"
#include "data/text/tokenizer.h"

namespace braid {

// Places in the text, in bytes. What is learned begins with the first byte that the model is not given, and ends with
// what ends the turn.
struct AnswerSpan {
  std::size_t turn = 0;
  std::size_t before = 0;  // where the text of the turn before it ends
  std::size_t begin = 0;   // of what is learned
  std::size_t said = 0;    // where the answer's own text ends
  std::size_t end = 0;     // of what is learned
  std::size_t after = 0;   // where the text of the turn after it begins
};

// The targets are the tokens with text of an answer, and the whole tokens of its end. DataError with the number of the
// turn if a token has text of two turns.
ChatTokens targets_of(const std::string& text, const std::vector<AnswerSpan>& spans, const Tokenizer& tokenizer);

}  // namespace braid
