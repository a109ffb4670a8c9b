#include "data/indexed/index_lines.h"
#include <nlohmann/json.hpp>
#include "base/files.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "base/worker_pool.h"
#include "data/shards/indexed_file.h"
#include "data/text/tokenizer.h"

namespace braid {
namespace {

constexpr std::size_t kLinesAtOnce = 4096;
constexpr std::size_t kBytesAtOnce = 64 << 20;

std::string text_in(const std::string& line, const std::string& key) {
  const auto parsed = nlohmann::json::parse(with_valid_utf8(line), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw DataError("it is not a JSON object");
  const auto text = parsed.find(key);
  if (text == parsed.end()) throw DataError(fmt::format("it has no {}", in_quotes(key)));
  if (!text->is_string()) throw DataError(fmt::format("its {} is not a text", in_quotes(key)));
  return *text;
}

struct Line {
  std::int64_t number = 0;
  std::string json{};
};

// The next lines that are not empty.
std::vector<Line> read_lines(std::ifstream& file, std::int64_t& number) {
  std::vector<Line> lines;
  std::size_t bytes = 0;
  for (std::string line; lines.size() < kLinesAtOnce && bytes < kBytesAtOnce && std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    bytes += line.size();
    lines.push_back({number, std::move(line)});
  }
  return lines;
}

void refuse_existing(const IndexLinesRequest& request) {
  for (const std::string_view ending : {kIndexedTokens, kIndexedIndex})
    if (const std::string path = request.prefix + std::string(ending); is_there(path) && !request.force)
      throw ConfigError({fmt::format("'{}' exists", path), "--to-indexed", "use another prefix, or --force"});
}

}  // namespace

IndexedLines index_lines(const IndexLinesRequest& request) {
  refuse_existing(request);
  const InputFile source(request.lines);  // refuses what is no file
  std::ifstream file(request.lines, std::ios::binary);
  const Tokenizer tokenizer = load_tokenizer(request.tokenizer);
  IndexedWriter writer(request.prefix, tokenizer.vocab_size());
  WorkerPool pool(request.threads);
  IndexedLines result;
  std::int64_t number = 0;
  for (std::vector<Line> lines; !(lines = read_lines(file, number)).empty();) {
    std::vector<std::vector<int>> documents(lines.size());
    pool.run(lines.size(), [&](std::size_t i) {
      try {
        const std::string text = text_in(lines[i].json, request.key);
        if (!text.empty()) documents[i] = encode_plain_text(tokenizer, text, request.append_eod);
      } catch (const DataError& e) {
        throw DataError(fmt::format("'{}', line {}: {}", request.lines, lines[i].number, e.what()));
      }
    });
    for (const std::vector<int>& ids : documents) {
      if (ids.empty()) {
        ++result.empty;
        continue;
      }
      writer.add_document(ids);
      ++result.documents;
      result.tokens += std::ssize(ids);
    }
    if (request.progress && file) request.progress(file.tellg(), static_cast<std::int64_t>(source.size()));
  }
  if (file.bad()) throw DataError(fmt::format("'{}' could not be read to its end", request.lines));
  if (result.documents == 0) throw DataError(fmt::format("'{}' has no text", request.lines));
  writer.finish();
  return result;
}

}  // namespace braid
