// Divides and normalizes texts for tests/oracles/unicode_test.py. Each line of standard input is a JSON object:
//   {"pre_tokenizer": {...}, "texts": [...]}  -> {"pieces": [[begin, end, begin, end, ...], ...]}, in bytes
//   {"normalizer": {...}, "texts": [...]}     -> {"texts": [...]}
// Without "texts", the text is ALL of unicode_test.py. An error gives {"error": "..."}.
#include <iostream>
#include <nlohmann/json.hpp>
#include "base/utf8.h"
#include "data/text/tokenizer.h"

namespace {

using Json = nlohmann::json;

std::string all_characters() {
  std::string text;
  for (std::uint32_t code = 0; code < 0x110000; ++code)
    if (braid::is_character(code) &&
        (code < 0x34000 || (code >= 0xe0000 && code < 0xe1000) || code % 251 == 0 || (code & 0xffff) >= 0xfffe))
      braid::append_utf8(text, code);
  return text;
}

Json pieces_of(const braid::Steps<braid::Pieces>& pre_tokenizer, const std::string& text) {
  braid::Pieces pieces{text, {}};
  if (!text.empty()) pieces.list.push_back({0, text.size(), true});
  braid::apply(pre_tokenizer, pieces);
  std::vector<std::size_t> borders;
  for (const braid::Piece& piece : pieces.list) borders.insert(borders.end(), {piece.begin, piece.end});
  return borders;
}

Json answer(const Json& request, const std::string& all) {
  std::vector<std::string> texts;
  if (request.contains("texts"))
    request["texts"].get_to(texts);
  else
    texts.push_back(all);
  Json results = Json::array();
  if (request.contains("normalizer")) {
    const auto normalizer = braid::read_normalizer(braid::JsonPlace(request["normalizer"], "normalizer"));
    for (std::string& text : texts) {
      braid::apply(normalizer, text);
      results.push_back(text);
    }
    return {{"texts", results}};
  }
  const auto pre_tokenizer = braid::read_pre_tokenizer(braid::JsonPlace(request["pre_tokenizer"], "pre_tokenizer"));
  for (const std::string& text : texts) results.push_back(pieces_of(pre_tokenizer, text));
  return {{"pieces", results}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  const std::string all = all_characters();
  for (std::string line; std::getline(std::cin, line);) {
    Json result;
    try {
      result = answer(Json::parse(line), all);
    } catch (const std::exception& e) {
      result = {{"error", e.what()}};
    }
    fmt::print("{}\n", result.dump());
  }
}
