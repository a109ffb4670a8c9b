// A save that is killed at any of its file operations: the next start finds a complete checkpoint by itself, and
// nothing of the killed save remains after the next save. Every operation is tried, in child processes with a preloaded
// library that counts the operations.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/process.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/save_job.h"
#include "ckpt/save_lock.h"
#include "support/operation_counter.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using testing::OperationCounter;
using testing::TemporaryFolder;

constexpr int kWriters = 2;

// Filled with the save's number, in a child process without libtorch's threads.
at::Tensor filled(std::int64_t rows, std::int64_t number) {
  at::Tensor tensor = at::empty({rows, 8}, at::kFloat);
  std::fill_n(tensor.mutable_data_ptr<float>(), tensor.numel(), static_cast<float>(number));
  return tensor;
}

std::int64_t number_in(const std::string& root, std::int64_t iteration) {
  DistCheckpoint checkpoint(iteration_folder(root, iteration));
  at::Tensor whole = filled(kWriters, 0);
  checkpoint.read("a", {0, 0}, whole);
  checkpoint.check_rest();
  const float* values = whole.const_data_ptr<float>();
  return std::count(values, values + whole.numel(), values[0]) == whole.numel() ? static_cast<std::int64_t>(values[0])
                                                                                : -1;
}

// A run that starts, loads and saves once, keeping one checkpoint. Returns the number it resumed from.
std::int64_t start_and_save(const std::string& root, std::int64_t iteration, std::int64_t number) {
  SaveLock lock(root);
  settle_unfinished(root);
  const auto latest = latest_iteration(root);
  const std::int64_t resumed = latest ? number_in(root, *latest) : 0;
  if (latest) remove_old_iterations(root, 1);
  if (iterations_in(root).size() > 1) throw std::runtime_error("no room on a disk for two checkpoints and a half");
  begin_iteration(root, iteration);
  for (const int writer : {1, 0}) {
    const SaveJob job({.tensors = {{"a", {kWriters, 8}, {writer, 0}, filled(1, number)}}, .common = pickle_dict({})},
                      {.root = root, .iteration = iteration, .writer = writer, .writers = kWriters, .keep_last = 1});
    while (!job.done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    job.result();
  }
  return resumed;
}

int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(body());
    } catch (const std::exception& e) {
      fprintf(stderr, "%s\n", e.what());
      _exit(255);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> names_below(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    names.push_back(fs::relative(entry.path(), root).string());
  std::sort(names.begin(), names.end());
  return names;
}

struct Scenario {
  std::string name;
  std::int64_t before;  // the existing iteration, with number 10; 0: none
  std::int64_t saved;   // the iteration whose save is killed, with number 20
  bool overlay = false;
};

// Returns the number of operations of a save.
std::int64_t kill_everywhere(const Scenario& scenario, OperationCounter& counter) {
  const TemporaryFolder folder;
  const std::string root = std::getenv(testing::kOperationsFolder), template_ = folder.path() + "/before";
  const auto reset = [&] {
    fs::remove_all(root);
    fs::copy(template_, root, fs::copy_options::recursive);
  };
  fs::create_directory(template_);
  counter.kill_at(0);
  counter->overlay = false;
  if (scenario.before) EXPECT_EQ(in_child([&] { return start_and_save(template_, scenario.before, 10); }), 0);
  counter->overlay = scenario.overlay;
  for (std::int64_t operation = 1;; ++operation) {
    counter.kill_at(0);
    reset();
    counter.kill_at(operation);
    const int killed = in_child([&] { return start_and_save(root, scenario.saved, 20) >= 0 ? 0 : 1; });
    if (killed == 0) return operation - 1;
    const std::string what = scenario.name + ", killed at operation " + std::to_string(operation);
    EXPECT_EQ(killed, -SIGKILL) << what;
    counter.kill_at(0);
    const int resumed = in_child([&] { return static_cast<int>(start_and_save(root, 60, 30)); });
    EXPECT_TRUE(resumed == (scenario.before ? 10 : 0) || resumed == 20) << what << ": went on from " << resumed;
    const std::vector<std::string> wanted = {"iter_0000060",
                                             "iter_0000060/.metadata",
                                             "iter_0000060/__0_0.distcp",
                                             "iter_0000060/__1_0.distcp",
                                             "iter_0000060/checksums.json",
                                             "iter_0000060/common.pt",
                                             "iter_0000060/metadata.json",
                                             "latest_checkpointed_iteration.txt"};
    EXPECT_EQ(names_below(root), wanted) << what;
    if (::testing::Test::HasFailure()) return operation;
  }
}

// Started by the test below, with the library preloaded.
TEST(KilledSaves, DISABLED_InThisProgram) {
  OperationCounter counter(std::getenv(testing::kOperationsFile));
  for (const Scenario& scenario :
       {Scenario{"the first save", 0, 20}, Scenario{"a later save", 10, 20},
        Scenario{"an iteration saved again", 20, 20}, Scenario{"the same on an overlay file system", 20, 20, true}}) {
    const std::int64_t operations = kill_everywhere(scenario, counter);
    printf("%s: %ld operations\n", scenario.name.c_str(), operations);
    EXPECT_GT(operations, 20) << scenario.name;
  }
}

TEST(KilledSaves, ResumeByThemselvesAndLeaveNothing) {
  // In memory if there is such a folder: on a disk, hundreds of saves take a minute.
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
  const TemporaryFolder folder;
  const OperationCounter counter(folder.path() + "/counter");
  const testing::Finished done = testing::run_program(
      {own_executable(), "--gtest_filter=KilledSaves.DISABLED_InThisProgram", "--gtest_also_run_disabled_tests"},
      counter.environment(folder.path() + "/checkpoints"));
  unsetenv("TMPDIR");
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_THAT(done.out, ::testing::HasSubstr("overlay file system: ")) << "or nothing was killed";
}

}  // namespace
}  // namespace braid
