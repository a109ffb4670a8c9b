// One process of bench/checkpoint.py: holds a shard of a state, and saves and loads it on commands from stdin.
//   checkpoint_worker RANK RANKS TENSORS ROWS COLUMNS
//   begin ROOT      prepares a save; on one rank
//   save ROOT       on all ranks, as iteration 1; the first publishes
//   snapshot ROOT   the same from a copy, as in an asynchronous save
//   load ROOT       into tensors with other values
// Each is answered by a line: "ok", and the peak memory in bytes above the memory in use before.
#include <ATen/ATen.h>
#include <iostream>
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/save_job.h"

namespace {

using namespace braid;

struct Worker {
  int rank, ranks;
  std::vector<KeyedTensor> state{};
};

Worker make_worker(char** argv) {
  Worker worker = {std::stoi(argv[1]), std::stoi(argv[2])};
  const std::int64_t rows = std::stoll(argv[4]), columns = std::stoll(argv[5]);
  for (int i = 0; i < std::stoi(argv[3]); ++i)
    worker.state.push_back({fmt::format("tensor{}", i),
                            {worker.ranks * rows, columns},
                            {worker.rank * rows, 0},
                            at::full({rows, columns}, 1000 * worker.rank + i + 1, at::kFloat)});
  return worker;
}

std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return 1024 * std::stoll(line.substr(field.size()));
  return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

void save(const Worker& worker, const std::string& root, bool copy) {
  SaveContent content = {.tensors = worker.state, .common = pickle_dict({{"iteration", pickle(1)}})};
  if (copy) content.tensors = copied_to_host(std::move(content.tensors));
  const SaveJob job(std::move(content), {.root = root, .iteration = 1, .writer = worker.rank, .writers = worker.ranks});
  while (!job.done()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  job.result();
}

void load(Worker& worker, const std::string& root) {
  DistCheckpoint checkpoint(iteration_folder(root, 1));
  for (KeyedTensor& tensor : worker.state) checkpoint.read(tensor.key, tensor.begin, tensor.value);
}

void check(const Worker& worker) {
  for (std::size_t i = 0; i < worker.state.size(); ++i)
    if (!worker.state[i].value.eq(1000 * worker.rank + static_cast<int>(i) + 1).all().item<bool>())
      throw std::runtime_error(fmt::format("tensor {} is not what was saved", i));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  Worker worker = make_worker(argv);
  for (std::string command, root; std::cin >> command >> root;) try {
      const std::int64_t before = status_bytes("VmRSS:");
      forget_peak();
      if (command == "begin") begin_iteration(root, 1);
      if (command == "save" || command == "snapshot") save(worker, root, command == "snapshot");
      if (command == "load") load(worker, root);
      if (command == "clear")
        for (KeyedTensor& tensor : worker.state) tensor.value.zero_();
      if (command == "check") check(worker);
      fmt::print("ok {}\n", status_bytes("VmHWM:") - before);
      std::fflush(stdout);
    } catch (const std::exception& e) {
      fmt::print("failed: {}\n", e.what());
      return 1;
    }
}
