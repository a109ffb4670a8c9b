// Whatever happens to a save, the previous checkpoint loads, and an incomplete save never looks like a checkpoint.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/save_job.h"
#include "ckpt/save_lock.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr int kWriters = 3;
constexpr std::int64_t kRows = 64, kColumns = 4096;

// In a forked child, which lacks libtorch's threads.
at::Tensor filled(std::int64_t rows, std::int64_t number) {
  at::Tensor tensor = at::empty({rows, kColumns}, at::kFloat);
  std::fill_n(tensor.mutable_data_ptr<float>(), tensor.numel(), static_cast<float>(number));
  return tensor;
}

// Every writer has some rows of each of these tensors, all filled with the iteration's number.
SaveContent content_of(std::int64_t iteration, int writer, int writers) {
  SaveContent content = {.objects = {{fmt::format("object/shard_{}_{}", writer, writers), pickle(iteration)}},
                         .common = pickle_dict({{"iteration", pickle(iteration)}})};
  for (const char* key : {"a", "b", "c"})
    content.tensors.push_back({key, {writers * kRows, kColumns}, {writer * kRows, 0}, filled(kRows, iteration)});
  return content;
}

// One writer's complete save; returns its error, or nothing.
std::string save_as(int writer, const std::string& root, std::int64_t iteration, int writers = kWriters) {
  const SaveJob job(content_of(iteration, writer, writers),
                    {.root = root, .iteration = iteration, .writer = writer, .writers = writers});
  while (!job.done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  try {
    job.result();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

pid_t in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<pid_t> start_writers(const std::string& root, std::int64_t iteration) {
  begin_iteration(root, iteration);
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer)
    writers.push_back(in_child([&] { return save_as(writer, root, iteration).empty() ? 0 : 1; }));
  return writers;
}

void save(const std::string& root, std::int64_t iteration) {
  for (const pid_t writer : start_writers(root, iteration)) EXPECT_EQ(exit_code(writer), 0);
}

void expect_loads(const std::string& root, std::int64_t iteration) {
  DistCheckpoint checkpoint(iteration_folder(root, iteration));
  for (const char* key : {"a", "b", "c"}) {
    at::Tensor whole = filled(kWriters * kRows, 0);
    checkpoint.read(key, {0, 0}, whole);
    const float* values = whole.const_data_ptr<float>();
    EXPECT_EQ(std::count(values, values + whole.numel(), static_cast<float>(iteration)), whole.numel()) << key;
  }
  checkpoint.check_rest();
}

TEST(SaveFaults, KillingAWriterAtAnyMomentLeavesTheCheckpointBefore) {
  const TemporaryFolder folder;
  const std::string root = folder.path();
  std::mt19937 random(20261115);
  save(root, 0);
  const auto start = std::chrono::steady_clock::now();
  save(root, 1);
  // A busy machine may have taken longer for it than for those below: the time shrinks until trials hit the save.
  std::chrono::duration<double> whole_save = std::chrono::steady_clock::now() - start;
  std::int64_t latest = 1;
  int interrupted = 0;
  for (int trial = 0; trial < 12 || (interrupted < 2 && trial < 60); ++trial) {
    const std::int64_t iteration = 2 + trial;
    const std::vector<pid_t> writers = start_writers(root, iteration);
    // The previous save may have been complete except for the tracker, which has been repaired now.
    if (latest_iteration(root) == iteration - 1) latest = iteration - 1;
    const double moment = std::uniform_real_distribution<>(0, 1)(random);
    std::this_thread::sleep_for(moment * whole_save);
    kill(writers[random() % kWriters], SIGKILL);
    // The other processes end some time after the run.
    std::this_thread::sleep_for(0.2 * whole_save);
    for (const pid_t writer : writers) kill(writer, SIGKILL);
    for (const pid_t writer : writers) exit_code(writer);
    if (latest_iteration(root) == iteration) {
      latest = iteration;  // it was complete before the fault
      whole_save *= 0.75;
    } else {
      ++interrupted;
    }
    ASSERT_EQ(latest_iteration(root), latest) << "trial " << trial;
    for (const std::int64_t complete : iterations_in(root)) expect_loads(root, complete);
    remove_old_iterations(root, 1);
  }
  EXPECT_GT(interrupted, 1) << "some trials should hit the save";
  save(root, 100);
  expect_loads(root, 100);
  for (const auto& entry : std::filesystem::directory_iterator(root))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".iter")) << "nothing unfinished stays";
}

// Runs with a separate file system of 14 MiB at `path`; skips the test if that is not allowed.
constexpr int kNotAllowed = 77;
int with_small_disk(const std::string& path, const std::function<int()>& body) {
  return exit_code(in_child([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNotAllowed;
    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, "size=14m") != 0) return kNotAllowed;
    return body();
  }));
}

// For a child process, where expectations do not reach the test: prints what fails.
int check(bool holds, const std::string& what) {
  if (!holds) fmt::print(stderr, "{}\n", what);
  return holds ? 0 : 1;
}

TEST(SaveFaults, AFullDiskIsNamedAndLeavesTheCheckpointBefore) {
  const TemporaryFolder folder;
  const std::string root = folder.path();
  const int code = with_small_disk(root, [&] {
    std::string errors[kWriters];
    const auto save_all = [&](std::int64_t iteration) {
      begin_iteration(root, iteration);
      for (int writer = 1; writer < kWriters; ++writer) errors[writer] = save_as(writer, root, iteration);
      if (errors[1].empty() && errors[2].empty()) errors[0] = save_as(0, root, iteration);
    };
    save_all(1);  // 9 MiB: one fits, two do not
    for (const std::string& error : errors)
      if (const int code = check(error.empty(), "the first save: " + error)) return code;
    save_all(2);
    const std::string error = errors[1] + errors[2];
    if (const int code = check(error.find("No space left") != std::string::npos &&
                                   error.find(".iter_0000002.partial/__") != std::string::npos,
                               "the second save says '" + error + "'"))
      return code;
    expect_loads(root, 1);
    return check(latest_iteration(root) == 1 && !::testing::Test::HasFailure(), "the first checkpoint has suffered");
  });
  if (code == kNotAllowed) GTEST_SKIP() << "may not mount a file system";
  EXPECT_EQ(code, 0);
}

TEST(SaveFaults, AReadOnlyFolderIsRefusedBeforeTheRunBegins) {
  const TemporaryFolder folder;
  const std::string root = folder.path();
  const int code = with_small_disk(root, [&] {
    begin_iteration(root, 1);
    if (const int code = check(save_as(0, root, 1, 1).empty(), "the first save")) return code;
    mount("none", root.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr);
    try {
      const SaveLock lock(root);
    } catch (const ConfigError& e) {
      return check(std::string(e.what()).find("cannot save to") != std::string::npos && latest_iteration(root) == 1,
                   e.what());
    }
    return check(false, "it is not refused");
  });
  if (code == kNotAllowed) GTEST_SKIP() << "may not mount a file system";
  EXPECT_EQ(code, 0);
}

TEST(SaveFaults, AnIterationIsReplacedAsAWhole) {
  const TemporaryFolder folder;
  save(folder.path(), 5);
  begin_iteration(folder.path(), 5);
  expect_loads(folder.path(), 5);
  save(folder.path(), 5);
  expect_loads(folder.path(), 5);
  EXPECT_EQ(latest_iteration(folder.path()), 5);
}

// Megatron makes an iteration's folder before it writes there; ours that are being removed say so outside of them.
TEST(CheckpointFolder, AnEmptyIterationIsOursOnlyWhereItWasBeingRemoved) {
  const TemporaryFolder folder;
  const std::string root = folder.path(), ours = iteration_folder(root, 3), theirs = iteration_folder(root, 7);
  std::filesystem::create_directories(ours);
  std::filesystem::create_directories(theirs);
  folder.write(".iter_0000003.removed", "");
  settle_unfinished(root);
  EXPECT_FALSE(std::filesystem::exists(ours) || std::filesystem::exists(root + "/.iter_0000003.removed"));
  EXPECT_TRUE(std::filesystem::exists(theirs));
}

TEST(CheckpointFolder, ATrackerThatIsWrongIsNamedAndOneThatIsMissingIsNotNeeded) {
  const TemporaryFolder folder;
  const std::string root = folder.path(), tracker = root + "/latest_checkpointed_iteration.txt";
  EXPECT_EQ(latest_iteration(root), std::nullopt);
  begin_iteration(root, 5);
  ASSERT_EQ(save_as(0, root, 5, 1), "");
  const auto error = [&] {
    try {
      latest_iteration(root);
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const char* text : {"", "five", "-5", "6", "5x5"}) {
    folder.write("latest_checkpointed_iteration.txt", text);
    EXPECT_THAT(error(), HasSubstr(tracker)) << text;
  }
  folder.write("latest_checkpointed_iteration.txt", "5\n");
  EXPECT_EQ(latest_iteration(root), 5);
  // Killed after the iteration was published: it is complete, whatever the tracker could not say.
  std::filesystem::remove(tracker);
  EXPECT_EQ(latest_iteration(root), 5);
}

}  // namespace
}  // namespace braid
