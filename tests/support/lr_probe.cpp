// Schedules for a test in another language. Each line of standard input is one: `key=value` settings of
// LrScheduleConfig, `iterations=`, `samples=` and `global_batch=` of the run, and ascending numbers of samples:
//   lr=0.1 decay_style=linear iterations=10 global_batch=4 0 4 8
// Answered by a line with learning rate and weight decay at each number, and a line with the state at the end; or by
// a line `refused: ` with the fields at fault.
#include <iostream>
#include "base/strings.h"
#include "optim/optimizer_config.h"

namespace {

using namespace braid;

struct Probe {
  LrScheduleConfig config{};
  TrainLength length{};
  std::vector<std::int64_t> samples;
};

std::int64_t integer(const std::string& text) {
  const std::optional<std::int64_t> value = parse_int64(text);
  if (!value) throw ConfigError({fmt::format("'{}' is not an integer", text), "standard input", ""});
  return *value;
}

Probe parse(const std::string& line) {
  Probe probe;
  std::vector<ConfigOverride> settings;
  for (const std::string& word : split(line, ' ')) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos)
      probe.samples.push_back(integer(word));
    else if (key == "iterations")
      probe.length.iterations = integer(word.substr(equals + 1));
    else if (key == "samples")
      probe.length.samples = integer(word.substr(equals + 1));
    else if (key == "global_batch")
      probe.length.global_batch = static_cast<int>(integer(word.substr(equals + 1)));
    else
      settings.push_back({key, word.substr(equals + 1)});
  }
  YamlReader reader = YamlReader::from_text("", "standard input", settings);
  describe(reader, probe.config);
  if (std::vector<Problem> problems = reader.finish(); !problems.empty()) throw ConfigError(problems);
  return probe;
}

std::string answer(const Probe& probe) {
  const std::vector<Problem> problems = validate(probe.config, probe.length, "schedule");
  std::string text;
  if (!problems.empty()) {
    for (const Problem& problem : problems) text += " " + problem.where;
    return "refused:" + text;
  }
  LrSchedule schedule = resolve(probe.config, probe.length);
  for (const std::int64_t samples : probe.samples) {
    schedule.step(samples - schedule.num_steps);
    text += fmt::format("{:.17g} {:.17g} ", schedule.learning_rate(), schedule.weight_decay());
  }
  return text + "\n" + to_string(schedule);
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(parse(line)) << "\n";
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
