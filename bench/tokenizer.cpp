// Encodes texts on one core and prints how long it took, for bench/tokenizer.py, which compares with Hugging Face's
// library. Usage: bench_tokenizer TOKENIZER ROUNDS < TEXTS (one JSON string per line); prints the seconds of each
// round, then the ids of each text.
#include "data/text/tokenizer.h"
#include <fmt/ranges.h>
#include <iostream>
#include <nlohmann/json.hpp>

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: bench_tokenizer TOKENIZER ROUNDS < TEXTS\n");
    return 2;
  }
  std::vector<std::string> texts;
  for (std::string line; std::getline(std::cin, line);) texts.push_back(nlohmann::json::parse(line));
  std::vector<std::vector<int>> ids(texts.size());
  std::vector<double> seconds;
  for (int round = 0; round < std::atoi(argv[2]); ++round) {
    // A new tokenizer each time: its cache of words starts empty.
    const braid::Tokenizer tokenizer = braid::load_tokenizer(argv[1]);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < texts.size(); ++i) ids[i] = tokenizer.encode(texts[i]);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  fmt::print("[{}]\n", fmt::join(seconds, ","));
  for (const std::vector<int>& of_text : ids) fmt::print("[{}]\n", fmt::join(of_text, ","));
}
