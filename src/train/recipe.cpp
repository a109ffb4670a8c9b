#include "train/recipe.h"

namespace braid {
namespace {

void check_positive(std::vector<Problem>& problems, const char* key, double value) {
  if (value > 0) return;
  problems.push_back({fmt::format("{}={} should be greater than 0", key, value), key, ""});
}

void check_seconds(std::vector<Problem>& problems, const char* key, double value) {
  constexpr double kYear = 365 * 86400.0;
  if (value > 0 && value <= kYear) return;
  problems.push_back(
      {fmt::format("{}={} should be greater than 0 and at most a year ({} s)", key, value, kYear), key, ""});
}

std::vector<Problem> validate(const Recipe& recipe) {
  std::vector<Problem> problems = validate(recipe.topology, workload_of(recipe));
  check_positive(problems, "train.iterations", recipe.train.iterations);
  check_positive(problems, "train.lr", recipe.train.lr);
  check_positive(problems, "train.log_interval", recipe.train.log_interval);
  check_positive(problems, "model.features", recipe.model.features);
  check_positive(problems, "model.hidden", recipe.model.hidden);
  check_seconds(problems, "dist.hang_limit_s", recipe.dist.hang_limit_s);
  check_seconds(problems, "dist.connect_timeout_s", recipe.dist.connect_timeout_s);
  return problems;
}

Recipe read_recipe(YamlReader reader) {
  Recipe recipe;
  describe(reader, recipe);
  std::vector<Problem> problems = reader.finish();
  // A topology read only in part would complain about things the reader has named already.
  if (problems.empty()) {
    problems = validate(recipe);
    for (Problem& problem : problems) problem.where = reader.where(problem.where);
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return recipe;
}

}  // namespace

void describe(Fields& f, TrainConfig& c) {
  f.field("iterations", c.iterations, "optimizer steps");
  f.field("micro_batch", c.micro_batch, "samples per language replica and microbatch");
  f.field("global_batch", c.global_batch, "samples per step");
  f.field("lr", c.lr, "learning rate");
  f.field("seed", c.seed, "one seed, the same run again");
  f.field("log_interval", c.log_interval, "steps between log lines");
}

void describe(Fields& f, Recipe& r) {
  f.section("topology", r.topology);
  f.section("model", r.model);
  f.section("train", r.train);
  f.section("dist", r.dist);
}

Workload workload_of(const Recipe& recipe) {
  return {.micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .num_experts = recipe.model.num_experts};
}

Recipe load_recipe(const std::string& path, const std::vector<ConfigOverride>& overrides) {
  return read_recipe(YamlReader::from_file(path, overrides));
}

Recipe parse_recipe(const std::string& yaml, const std::vector<ConfigOverride>& overrides) {
  return read_recipe(YamlReader::from_text(yaml, "recipe", overrides));
}

std::string to_yaml(Recipe recipe) {
  YamlWriter writer;
  describe(writer, recipe);
  return writer.text();
}

}  // namespace braid
