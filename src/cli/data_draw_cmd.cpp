// braid data draw: a data set of drawn pictures with questions and answers.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <limits>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "cli/data_commands.h"
#include "data/draw/data_set.h"
#include "run/written_paths.h"

namespace braid {

void add_data_draw_command(CLI::App& data) {
  auto request = std::make_shared<DrawRequest>();
  CLI::App* draw = data.add_subcommand("draw", "Draw pictures with questions and answers, as a data set to train on");
  draw->add_option("folder", request->folder, "folder to write: new, or empty")->required();
  draw->add_option("--samples", request->train, "samples of the split train")->capture_default_str();
  draw->add_option("--val", request->val, "samples of the split val")->capture_default_str();
  draw->add_option("--per-shard", request->per_shard, "samples per tar file")->capture_default_str();
  draw->add_option("--seed", request->seed, "the same seed draws the same samples")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max() - 1))
      ->capture_default_str();
  draw->add_option("--tasks", request->tasks, "kinds of samples, separated by commas; default: all")->delimiter(',');
  draw->footer("The folder also gets a tokenizer that has a token for each word of the questions and answers.");
  draw->callback([request] {
    require_writable({{"FOLDER", request->folder, WrittenPath::Folder}});
    const Drawn drawn = draw_data_set(*request);
    fmt::print("drew {} ({}) in {}, {}, in {}\n", counted(drawn.samples, "sample"), fmt::join(drawn.tasks, ", "),
               counted(drawn.shards, "shard"), readable_bytes(drawn.bytes), request->folder);
  });
}

}  // namespace braid
