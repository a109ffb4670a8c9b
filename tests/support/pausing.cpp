// Preloaded into ranks, it makes rare event orders common: short pauses, drawn from a seed, where a transport writes or
// waits for events, and a longer pause before the monitor thread of one rank, or of all, receives news.
//   LD_PRELOAD=libpausing.so BRAID_PAUSE_SEED=7 [BRAID_PAUSE_MONITOR_OF=1|all] [BRAID_PAUSE_EXIT=1] PROGRAM
// BRAID_PAUSE_EXIT holds what a transport writes during exit() until the destructors of all statics have run.
// BRAID_PAUSE_START=hang|end|thread|noise|fork: what happens in a process that is to fork into ranks, before its main;
// "noise" writes more than a pipe holds, and with "fork" the third fork fails.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace {

constexpr std::uint64_t kLongest_us = 3000, kMonitor_us = 30000;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

std::uint64_t number(const char* name) { return std::strtoull(variable(name).c_str(), nullptr, 10); }

void pause_us(std::uint64_t us) {
  const timespec time = {static_cast<time_t>(us / 1000000), static_cast<long>(us % 1000000) * 1000};
  nanosleep(&time, nullptr);
}

// Pauses in about every fourth call. Which ones depends on the seed, the rank and a counter, hashed by splitmix64.
void pause_sometimes() {
  static const std::uint64_t seed = number("BRAID_PAUSE_SEED") * 1000003 + number("RANK");
  static std::atomic<std::uint64_t> calls = 0;
  std::uint64_t x = (seed << 32) + 0x9e3779b97f4a7c15 * ++calls;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  if (x % 4 == 0) pause_us((x >> 8) % kLongest_us);
}

std::atomic<bool> exits = false, destroyed = false;

void hold_during_exit() {
  static const bool wanted = number("BRAID_PAUSE_EXIT") != 0;
  if (!wanted) return;
  pause_us(kLongest_us);
  while (exits && !destroyed) pause_us(100);
}

void let_held_threads_write(int, void*) {
  destroyed = true;
  pause_us(100 * kLongest_us);
}

// Handlers run in reverse order: this one, registered before main, runs after the destructors of all statics.
__attribute__((constructor)) void register_exit_handler() {
  if (number("BRAID_PAUSE_EXIT") != 0) on_exit(let_held_threads_write, nullptr);
}

__attribute__((constructor)) void disturb_start() {
  if (!std::getenv("BRAID_SHARED_START")) return;
  const std::string what = variable("BRAID_PAUSE_START");
  for (int line = 0; what == "noise" && line < 50'000; ++line)
    if (::write(STDERR_FILENO, "noise\n", 6) != 6) _exit(4);
  if (what == "hang") pause();
  if (what == "end") _exit(3);
  if (what == "thread") std::thread(pause).detach();
}

bool is_held_monitor() {
  static const std::string rank = variable("RANK"), held = variable("BRAID_PAUSE_MONITOR_OF");
  if (rank.empty() || (held != rank && held != "all")) return false;
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && !std::strcmp(name, "braid-monitor");
}

}  // namespace

extern "C" ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  pause_sometimes();
  hold_during_exit();
  return real(fd, parts, count);
}

extern "C" void exit(int code) {
  static const auto real = next<void (*)(int)>("exit");
  exits = true;
  real(code);
  __builtin_unreachable();
}

extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout_ms) {
  static const auto real = next<int (*)(int, epoll_event*, int, int)>("epoll_wait");
  const int ready = real(fd, events, most, timeout_ms);
  if (ready > 0) pause_sometimes();
  return ready;
}

extern "C" int poll(pollfd* entries, nfds_t count, int timeout_ms) {
  static const auto real = next<int (*)(pollfd*, nfds_t, int)>("poll");
  const int ready = real(entries, count, timeout_ms);
  if (ready > 0 && is_held_monitor()) pause_us(kMonitor_us);
  return ready;
}

extern "C" pid_t fork() {
  static const auto real = next<pid_t (*)()>("fork");
  static const bool third_fails = variable("BRAID_PAUSE_START") == "fork" && std::getenv("RANK");
  static std::atomic<int> calls = 0;
  if (!third_fails || ++calls < 3) return real();
  errno = EAGAIN;
  return -1;
}
