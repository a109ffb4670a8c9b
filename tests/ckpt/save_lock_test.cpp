// Only one run at a time saves to a folder, and a dead run locks out no other.
#include "ckpt/save_lock.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "ckpt/checkpoint_folder.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class SaveLockTest : public ::testing::Test {
 protected:
  std::string root() const { return folder_.path() + "/new/ckpt"; }
  std::string lock_file() const { return root() + "/.braid_lock"; }

  // The lock of a run that was killed while it held it, with some fields changed.
  void leave_lock(const nlohmann::json& changes = {}) const {
    const pid_t child = fork();
    if (child == 0) {
      const SaveLock lock(root());
      kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
    ASSERT_TRUE(std::filesystem::exists(lock_file()));
    nlohmann::json holder = nlohmann::json::parse(testing::read_file(lock_file()));
    holder.update(changes.is_null() ? nlohmann::json::object() : changes);
    std::filesystem::remove(lock_file());
    folder_.write("new/ckpt/.braid_lock", holder.dump() + "\n");
  }

  std::string refusal(SaveLock::Options options = {}) const {
    return error_of([&] { const SaveLock lock(root(), std::move(options)); });
  }
  // The same where the refusal must not wait.
  std::string refusal_at_once(const JobIdentity& job = {}) const {
    return refusal({.job = job, .beat = 1ms, .say = [](const std::string& text) {
                      EXPECT_THAT(text, ::testing::Not(HasSubstr("checking")));
                    }});
  }

  const testing::TemporaryFolder folder_;
};

const nlohmann::json kElsewhere = {{"host", "nodeb"}, {"pid_space", "another boot"}, {"pid", 77}, {"slurm_job", "42"}};

TEST_F(SaveLockTest, KeepsOthersOutAndSaysWhoHoldsIt) {
  {
    SaveLock lock(root());
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    EXPECT_THAT(refusal_at_once(),
                AllOf(HasSubstr("another run saves to '" + root()), HasSubstr(std::to_string(getpid())),
                      HasSubstr(host), HasSubstr("rm " + lock_file())));
    lock.check();
  }
  EXPECT_TRUE(std::filesystem::is_empty(root())) << "a run that ends gives it back";
  EXPECT_EQ(refusal(), "no error");
}

TEST_F(SaveLockTest, IsBrokenAtOnceWhereItsProcessIsGone) {
  leave_lock();
  EXPECT_EQ(refusal_at_once(), "no error");
  // A pid that another process has by now.
  leave_lock({{"pid", getpid()}, {"start_time", 1}});
  EXPECT_EQ(refusal_at_once(), "no error");
  EXPECT_TRUE(std::filesystem::is_empty(root()));
}

TEST_F(SaveLockTest, IsBrokenAtOnceByTheSameSlurmJobQueuedAgain) {
  leave_lock(kElsewhere);
  EXPECT_EQ(refusal_at_once({"42", 1}), "no error");
}

TEST_F(SaveLockTest, OfAnotherMachineIsBrokenWhenNobodyRenewsIt) {
  leave_lock(kElsewhere);
  std::string said;
  const SaveLock::Options options = {
      .job = {"43", 1}, .beat = 2ms, .silent_beats = 3, .say = [&](const std::string& text) { said += text + "\n"; }};
  EXPECT_EQ(refusal(options), "no error");
  EXPECT_THAT(said, AllOf(HasSubstr("whether it is renewed"), HasSubstr("pid 77 on 'nodeb') is gone")));
}

TEST_F(SaveLockTest, OfAnotherMachineIsKeptWhileItIsRenewed) {
  leave_lock(kElsewhere);
  const auto renew = [&](const std::string&) {  // called before the first check
    const timespec times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, lock_file().c_str(), times, 0), 0);
  };
  EXPECT_THAT(refusal({.beat = 2ms, .silent_beats = 3, .say = renew}),
              AllOf(HasSubstr("pid 77 on 'nodeb', Slurm job 42")));
  EXPECT_TRUE(std::filesystem::exists(lock_file()));
}

TEST_F(SaveLockTest, IsRenewedByItsHolder) {
  const SaveLock lock(root(), {.beat = 1ms});
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, lock_file().c_str(), times, 0), 0);
  struct stat info {};
  while (stat(lock_file().c_str(), &info) == 0 && info.st_mtim.tv_sec == 1) usleep(1000);  // or the test hangs
  EXPECT_GT(info.st_mtim.tv_sec, 1);
}

TEST_F(SaveLockTest, AHolderThatWasTakenForGoneFindsOut) {
  std::optional<SaveLock> first(root());
  std::filesystem::remove(lock_file());
  first->check();  // the lock was removed by mistake: it is created again
  EXPECT_THAT(refusal_at_once(), HasSubstr("another run saves"));
  std::filesystem::remove(lock_file());
  SaveLock second(root());
  EXPECT_THAT(error_of<std::runtime_error>([&] { first->check(); }),
              AllOf(HasSubstr("another run saves to"), HasSubstr("was removed")));
  first.reset();
  second.check();  // the end of the first does not affect the second
}

// A launcher takes the lock, and a rank of its run checks and renews it.
TEST_F(SaveLockTest, IsSharedByTheProcessesOfARun) {
  std::optional<SaveLock> launcher(root());
  {
    SaveLock rank(root(), {.beat = 1ms, .held = launcher->text()});
    rank.check();
    std::filesystem::remove(lock_file());
    rank.check();  // which creates it again
  }
  launcher->check();
  EXPECT_THAT(refusal_at_once(), HasSubstr("another run saves to"));
  launcher.reset();
  EXPECT_TRUE(std::filesystem::is_empty(root()));
}

// A holder removes leftovers of killed runs; a lock that is being created meanwhile is created again.
TEST_F(SaveLockTest, IsTakenWhileAnotherRunClearsUp) {
  std::filesystem::create_directories(root());
  std::atomic<int> removed = 0;
  std::atomic<bool> done = false;
  std::thread other([&] {  // removes fewer times than a lock retries
    while (!done && removed < 10) {
      for (const auto& entry : std::filesystem::directory_iterator(root()))
        if (is_unfinished(entry.path().filename().string()) && unlink(entry.path().c_str()) == 0) ++removed;
    }
  });
  for (int i = 0; i < 1000 && removed < 10; ++i) EXPECT_EQ(refusal_at_once(), "no error");
  done = true;
  other.join();
  EXPECT_GT(removed, 0) << "the test proves nothing";
}

TEST_F(SaveLockTest, WhatIsNoLockIsNamed) {
  std::filesystem::create_directories(root());
  ASSERT_EQ(mkfifo(lock_file().c_str(), 0600), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(lock_file()), HasSubstr("not a regular file")));
  std::filesystem::remove(lock_file());
  folder_.write("new/ckpt/.braid_lock", std::string(100000, '['));
  EXPECT_THAT(refusal(), AllOf(HasSubstr(lock_file()), HasSubstr("more than")));
  for (const char* text : {"[[[[", ""}) {
    folder_.write("new/ckpt/.braid_lock", text);
    std::string said;
    EXPECT_EQ(refusal({.beat = 1ms, .silent_beats = 2, .say = [&](const std::string& line) { said += line + "\n"; }}),
              "no error");
    EXPECT_THAT(said, AllOf(HasSubstr("does not name its run"), HasSubstr("no run renews " + lock_file())));
  }
}

}  // namespace
}  // namespace braid
