// The order of Megatron's text for a test in another language. Each line of standard input is a JSON object with the
// fields of GptDataOptions, answered by a line with an object: `sequences`, `starts` and `shuffle` of each text, and of
// each sample which text and sample of it it is (`places`), and its tokens.
#include <iostream>
#include <nlohmann/json.hpp>
#include "data/indexed/gpt_data.h"

namespace {

using namespace braid;
using Json = nlohmann::json;

GptDataOptions options_in(const Json& line) {
  return {.path = line.at("path"),
          .shares = line.at("shares"),
          .split = line.at("split"),
          .samples = line.at("samples"),
          .sequence_length = line.at("sequence_length"),
          .seed = line.at("seed")};
}

Json to_json(const GptOrder& order) {
  Json starts = Json::array();
  for (const GptOrder::Start& start : order.starts) starts.push_back({start.place, start.offset});
  return {{"sequences", order.sequences}, {"starts", std::move(starts)}, {"shuffle", order.shuffle}};
}

Json answer(const Json& line) {
  const GptData data(options_in(line));
  Json result = {{"texts", Json::array()}, {"places", Json::array()}, {"tokens", Json::array()}};
  for (std::size_t text = 0; text < data.texts(); ++text) result["texts"].push_back(to_json(data.order_of(text)));
  for (std::int64_t sample = 0; sample < data.samples(); ++sample) {
    const GptData::Place place = data.place_of(sample);
    result["places"].push_back({place.text, place.sample});
    result["tokens"].push_back(data.read(sample));
  }
  return result;
}

// The processor's time in which one thread reads all samples: other programs may run at the same time.
Json seconds(const Json& line) {
  const GptData data(options_in(line));
  std::int64_t sum = data.read(0).front();  // makes the order
  const std::clock_t start = std::clock();
  for (std::int64_t sample = 0; sample < data.samples(); ++sample) sum += data.read(sample).back();
  const double spent = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return {{"seconds", spent}, {"samples", data.samples()}, {"sum", sum}};
}

}  // namespace

int main() {
  for (std::string text; std::getline(std::cin, text);) try {
      const Json line = Json::parse(text);
      fmt::print("{}\n", (line.contains("bench") ? seconds(line) : answer(line)).dump());
    } catch (const std::exception& e) {
      fmt::print("{}\n", Json{{"refused", e.what()}}.dump());
    }
}
