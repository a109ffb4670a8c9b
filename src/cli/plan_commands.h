// The subcommands of braid plan.
#pragma once

namespace CLI {
class App;
}

namespace braid {

void add_plan_bytes_command(CLI::App& plan);
void add_plan_calibrate_command(CLI::App& plan, int& exit_code);  // of braid-tensors
void add_plan_memory_command(CLI::App& plan);
void add_plan_search_command(CLI::App& plan);
void add_plan_simulate_command(CLI::App& plan);

}  // namespace braid
