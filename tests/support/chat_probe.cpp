// Renders and tokenizes conversations for tests/oracles/chat_test.py. Each line of standard input is a JSON object:
//   {"template": "...", "variables": {...}}                                      -> {"text": "..."}
//   {"tokenizer": DIR, "format": "...", "tags": "...", "turns": [[role, text]]}  -> {"tokens": [], "targets": []}
//   {"tokenizer": DIR, "format": "...", "record": {"messages": ...}}             -> the same, of a stored sample,
//   "unused"
// An error gives {"error": "..."}.
#include <iostream>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "data/samples/token_sequence.h"
#include "data/text/chat.h"

namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const braid::Tokenizer> tokenizer_of(const Json& request) {
  static std::map<std::string, std::shared_ptr<const braid::Tokenizer>> tokenizers;
  auto& tokenizer = tokenizers[request["tokenizer"]];
  if (!tokenizer) tokenizer = std::make_shared<const braid::Tokenizer>(braid::load_tokenizer(request["tokenizer"]));
  return tokenizer;
}

Json answer_to_record(const Json& request) {
  const std::string bytes = request["record"].dump();
  const braid::Sample sample = {.key = "0001", .parts = {{"json", bytes}}};
  const braid::Conversation conversation = braid::read_conversation(sample, {}, {});
  const braid::SequenceMaker maker({.prompt_format = request["format"]}, tokenizer_of(request), std::nullopt, 1 << 20);
  const std::vector<std::string> unused = maker.unused_fields(conversation);
  const braid::TokenSequence result = maker.encode(conversation);
  return {{"tokens", result.ids}, {"targets", result.targets}, {"unused", unused}};
}

Json answer(const Json& request) {
  if (request.contains("template"))
    return {
        {"text", braid::ChatTemplate(request["template"].get<std::string>(), "template").render(request["variables"])}};
  if (request.contains("record")) return answer_to_record(request);
  const braid::ChatEncoder encoder(*tokenizer_of(request), request["format"], request.value("tags", ""));
  std::vector<braid::ChatTurn> turns;
  for (const Json& turn : request["turns"]) turns.push_back({turn[0], turn[1]});
  const braid::ChatTokens result = encoder.encode_with_targets(turns);
  return {{"tokens", result.tokens}, {"targets", result.targets}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json result;
    try {
      result = answer(Json::parse(line));
    } catch (const std::exception& e) {
      result = {{"error", e.what()}};
    }
    fmt::print("{}\n", result.dump());
  }
}
