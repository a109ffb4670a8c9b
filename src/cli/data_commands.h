// The subcommands of `braid data`.
#pragma once

namespace CLI {
class App;
}

namespace braid {

void add_data_bench_command(CLI::App& data);
void add_data_draw_command(CLI::App& data);
void add_data_inspect_command(CLI::App& data);
void add_data_pack_command(CLI::App& data);
void add_data_tokenize_command(CLI::App& data);
void add_data_image_command(CLI::App& data);
void add_data_order_command(CLI::App& data);
void add_data_prepare_command(CLI::App& data);

}  // namespace braid
