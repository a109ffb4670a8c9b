// braid data tokenize: texts to token ids, and back.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/data_commands.h"
#include "data/text/tokenizer.h"

namespace braid {
namespace {

using Json = nlohmann::json;

struct TokenizeCommand {
  std::string tokenizer;
  bool decode = false, special = false;
};

Json parse_line(const std::string& line, bool decode) {
  Json value;
  try {
    value = Json::parse(with_valid_utf8(line));
  } catch (const Json::exception& e) {
    const std::string why = json_error(e.what()), of_one_line = "line 1, ";
    throw DataError(fmt::format("not JSON: {}", why.substr(why.starts_with(of_one_line) ? of_one_line.size() : 0)));
  }
  bool fits = decode ? value.is_array() : value.is_string();
  if (decode && fits)
    for (const Json& id : value) fits &= id.is_number_integer() && id >= 0 && id < (1 << 30);
  if (!fits) throw DataError(decode ? "not a JSON array of token ids" : "not a JSON string");
  return value;
}

std::string answer(const Tokenizer& tokenizer, const TokenizeCommand& command, const std::string& line) {
  const Json value = parse_line(line, command.decode);
  if (!command.decode)
    return fmt::format("[{}]", fmt::join(tokenizer.encode(value.get_ref<const std::string&>(), command.special), ","));
  return Json(tokenizer.decode(value.get<std::vector<int>>(), !command.special)).dump();
}

// Answers are flushed before each read that may wait, so that a program can send one line and read its answer.
void tokenize(const TokenizeCommand& command) {
  const Tokenizer tokenizer = load_tokenizer(command.tokenizer);
  std::string line;
  std::int64_t number = 0;
  const auto finish_line = [&] {
    ++number;
    try {
      fmt::print("{}\n", answer(tokenizer, command, line));
    } catch (const DataError& e) {
      std::fflush(stdout);
      throw DataError(fmt::format("standard input, line {}: {}", number, e.what()));
    }
    line.clear();
  };
  std::vector<char> buffer(1 << 16);
  while (true) {
    std::fflush(stdout);
    const ssize_t count = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("cannot read standard input");
    if (count == 0) break;
    for (std::string_view rest(buffer.data(), static_cast<std::size_t>(count)); !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line += rest.substr(0, end);
      if (end == std::string_view::npos) break;
      finish_line();
      rest.remove_prefix(end + 1);
    }
  }
  if (!line.empty()) finish_line();
}

}  // namespace

void add_data_tokenize_command(CLI::App& data) {
  auto options = std::make_shared<TokenizeCommand>();
  CLI::App* command = data.add_subcommand("tokenize", "Turn texts into token ids, or back");
  command->add_option("tokenizer", options->tokenizer, "a tokenizer.json, a sentencepiece .model, or a folder with one")
      ->required()
      ->type_name("TOKENIZER");
  command->add_flag("--decode", options->decode, "read arrays of ids, print texts");
  command->add_flag("--special", options->special, "add the special tokens; with --decode: print them");
  command->footer(
      "Reads one JSON string per line from standard input and prints one JSON array of ids per line:\n"
      "  echo '\"Hello\"' | braid data tokenize MODEL_DIR\n"
      "An invalid line ends the command with an error that has its number.");
  command->callback([options] { tokenize(*options); });
}

}  // namespace braid
