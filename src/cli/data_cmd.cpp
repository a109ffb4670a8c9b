// braid data: prepares, inspects and reads data sets.
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/data_commands.h"

namespace braid {

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Prepare, inspect and read data sets");
  data->require_subcommand(1);
  add_data_tokenize_command(*data);
  add_data_image_command(*data);
  add_data_draw_command(*data);
  add_data_prepare_command(*data);
  add_data_order_command(*data);
  add_data_pack_command(*data);
  add_data_inspect_command(*data);
  add_data_bench_command(*data);
}

}  // namespace braid
