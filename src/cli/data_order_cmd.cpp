// braid data order: the samples of a data set in the order in which one lane reads them.
#include <CLI/CLI.hpp>

#include <limits>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/data_call.h"
#include "cli/data_commands.h"
#include "data/shards/lane.h"
#include "data/shards/sample_reader.h"

namespace braid {
namespace {

struct OrderCommand {
  std::string path, split = "train";
  OrderConfig order{};
  int lane = 0;
  std::int64_t skip = 0, count = 20;
  bool evaluates = false;
};

// Each sample must be drawn to know the next: that many take about a minute.
constexpr std::int64_t kMostSkipped = 1'000'000'000;

// A name stays on its line; spaces in it are as they are, as in Energon's names.
std::string on_one_line(const std::string& name) {
  std::string line;
  for (const char c : visible_text(name)) line += c == '\t' ? "\\x09" : c == '\n' ? "\\x0a" : std::string(1, c);
  return line;
}

void print_order(OrderCommand command) {
  if (looks_like_recipe(command.path))
    throw ConfigError(
        {fmt::format("{} is a recipe, not a data set", in_quotes(command.path)), "PATH",
         fmt::format("give its data.path, a data set or a metadataset; or use `braid data pack {}`, which "
                     "takes a recipe",
                     command.path)});
  command.order.is_training = !command.evaluates;
  const auto blend = open_blend(command.path, command.split);
  Lane lane(blend, command.order, command.lane);
  SampleReader reader(blend);
  for (std::int64_t i = 0; i < command.skip; ++i)
    if (!lane.next()) return;
  for (std::int64_t i = 0; i < command.count; ++i) {
    const auto ref = lane.next();
    if (!ref) return;
    fmt::print("{} {}\n", on_one_line(reader.shard_of(*ref).name), on_one_line(reader.key(*ref)));
  }
}

}  // namespace

void add_data_order_command(CLI::App& data) {
  auto command = std::make_shared<OrderCommand>();
  CLI::App* order = data.add_subcommand("order", "Print which samples a lane reads, in order: shard and key");
  order->add_option("path", command->path, "a prepared folder, a .jsonl file, or a metadataset's .yaml file")
      ->required();
  const CLI::Range is_count(std::int64_t{0}, std::int64_t{1} << 40);
  order->add_option("--lanes", command->order.lanes, "how many lanes share the samples (Energon's world size)")
      ->capture_default_str();
  order->add_option("--lane", command->lane, "which of them, from 0 (Energon's rank)")->capture_default_str();
  order->add_option("--workers", command->order.workers, "workers per lane (Energon's num_workers); 0 means 1")
      ->capture_default_str();
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  order->add_option("--seed", command->order.seed, "seed of the order (Energon's seed_offset)")
      ->check(CLI::Range(-largest + 1, largest - 1))  // the parser gives the largest for any number that is too large
      ->capture_default_str();
  order->add_option("--split", command->split, "split to read")->capture_default_str();
  order->add_option("--count", command->count, "how many samples to print")->check(is_count)->capture_default_str();
  order->add_option("--skip", command->skip, "how many samples to leave out first; each must be drawn")
      ->check(CLI::Range(std::int64_t{0}, kMostSkipped))
      ->capture_default_str();
  order->add_option("--shuffle-buffer", command->order.shuffle_buffer, "samples that each worker shuffles at a time")
      ->capture_default_str();
  order->add_option("--max-samples-per-sequence", command->order.max_samples_per_sequence,
                    "how many samples are read in a row (default: those of a shard)");
  order->add_flag("--eval", command->evaluates, "each sample once, in the order of the shards, as in evaluation");
  order->footer("Example:\n  braid data order blend.yaml --lanes 4 --lane 2 --workers 2 --count 100");
  order->callback([command] { print_order(*command); });
}

}  // namespace braid
