// braid data pack: the sequences that a lane of a recipe's data set gives, before anything is trained on them.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <memory>
#include <set>

#include "base/strings.h"
#include "cli/commands.h"
#include "cli/data_call.h"
#include "cli/data_commands.h"
#include "data/inspect/reports.h"

namespace braid {
namespace {

struct PackCommand {
  std::string path;
  int lane = 0;
  std::int64_t skip = 0, count = 10;
  bool json = false, evaluates = false;
};

// Each sequence must be packed to know the next: that many take some minutes.
constexpr std::int64_t kMostSkipped = 10'000'000;

// Prints progress to stderr every 5 seconds.
class SkipProgress {
 public:
  explicit SkipProgress(std::int64_t all) : all_(all) {}

  void say(std::int64_t done) {
    constexpr auto kInterval = std::chrono::seconds(5);
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kInterval) return;
    last_ = now;
    fmt::print(stderr, "braid: {} of the {} that are left out are packed\n", counted(done, "sequence"), all_);
  }

 private:
  const std::int64_t all_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void print_packs(const PackCommand& command, const std::vector<std::string>& flags) {
  DataCall call = read_data_call(command.path, flags, command.evaluates ? DataUse::Evaluation : DataUse::Training);
  require_tokenizer(call);
  if (command.lane < 0 || command.lane >= call.options.lanes)
    throw ConfigError({fmt::format("there is no lane {}", command.lane), "--lane",
                       fmt::format("the recipe has {}, from 0", counted(call.options.lanes, "lane"))});
  const LaneSet set(std::move(call.options));
  WorkerPool pool(set.options.loader.threads);
  PackLane lane({set.blend, set.reader, set.sequences, set.options.data.fields, *set.bad, pool}, set.options.loader,
                set.order(), command.lane);
  SkipProgress progress(command.skip);
  std::vector<PackSize> sizes;
  std::set<SampleId> packed;
  std::int64_t number = 0;
  for (; number < command.skip + command.count; ++number) {
    const auto pack = lane.next();
    if (!pack) break;
    if (number < command.skip) {
      progress.say(number + 1);
      continue;
    }
    if (command.json) {
      fmt::print("{}\n", pack_json(*pack, set.options.sequence_length).dump());
      continue;
    }
    sizes.push_back(size_of(*pack));
    for (const ReadSample& sample : *pack)
      sizes.back().repeated += !packed.insert(id_of_sample(*sample.shard, sample.ref.index)).second;
  }
  if (command.json)
    fmt::print("{}\n", skipped_json(*set.bad).dump());
  else
    fmt::print("{}{}", show_packs(sizes, set.options.sequence_length), show_skipped(*set.bad));
  if (number == 0 && command.skip + command.count > 0)
    throw DataError(fmt::format("lane {} of split '{}' has no sample that can be used in a sequence of {} tokens: {}",
                                command.lane, set.options.split, set.options.sequence_length,
                                set.bad->why_none_is_left()));
  if (number < command.skip + command.count)
    fmt::print(stderr, "braid: lane {} of split '{}' ends after {}\n", command.lane, set.options.split,
               counted(number, "sequence"));
}

}  // namespace

void add_data_pack_command(CLI::App& data) {
  auto command = std::make_shared<PackCommand>();
  CLI::App* pack = data.add_subcommand("pack", "Print the packed sequences that a recipe's data set gives");
  pack->add_option("recipe", command->path, "a recipe, or a data set with --data.tokenizer and --data.prompt_format")
      ->required();
  const CLI::Range is_count(std::int64_t{0}, std::int64_t{1} << 40);
  pack->add_option("--count", command->count, "how many sequences to print")->check(is_count)->capture_default_str();
  pack->add_option("--skip", command->skip, "how many sequences to leave out first; each must be packed")
      ->check(CLI::Range(std::int64_t{0}, kMostSkipped))
      ->capture_default_str();
  pack->add_option("--lane", command->lane, "which lane to follow, from 0")->capture_default_str();
  pack->add_flag("--eval", command->evaluates, "the sequences of evaluation, from data.valid_split, each sample once");
  pack->add_flag(
      "--json", command->json,
      "one JSON object per sequence: samples, lengths, borders, labels and media, for programs; at the end one "
      "with the number of skipped samples");
  pack->allow_extras();
  pack->footer(short_overrides_help());
  pack->callback([command, pack] { print_packs(*command, pack->remaining()); });
}

}  // namespace braid
