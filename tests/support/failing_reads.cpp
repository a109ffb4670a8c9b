// Preloaded into ranks, it lets the system fail as disks and file servers do: some calls on files whose path contains a
// text fail, on one rank.
//   LD_PRELOAD=libfailing_reads.so BRAID_FAIL_RANK=1 BRAID_FAIL_PATH=.tar BRAID_FAIL_CALL=open|read|end|short
//   BRAID_FAIL_ERRNO=5 BRAID_FAIL_FROM=3 BRAID_FAIL_COUNT=1 PROGRAM
// `end` reads nothing, as if the file had been cut; `short` reads half of what was asked for, which is not an error.
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace {

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

struct Settings {
  const std::string rank = variable("BRAID_FAIL_RANK");
  const std::string path = variable("BRAID_FAIL_PATH"), call = variable("BRAID_FAIL_CALL");
  const int error = std::atoi(variable("BRAID_FAIL_ERRNO").c_str());
  const long from = std::atol(variable("BRAID_FAIL_FROM").c_str()),
             count = std::atol(variable("BRAID_FAIL_COUNT").c_str());
};

bool fails(const std::string& path, bool is_open) {
  static const Settings settings;
  static std::atomic<long> calls = 0;
  if (settings.rank.empty() || (settings.call == "open") != is_open || path.find(settings.path) == path.npos ||
      settings.rank != variable("RANK"))  // read at each call: before the fork, it is 0
    return false;
  const long call = calls++;
  if (call < settings.from || call >= settings.from + settings.count) return false;
  errno = settings.error;
  return true;
}

int open_file(const char* name, const char* path, int flags, mode_t mode) {
  if (fails(path, /*is_open=*/true)) return -1;
  return next<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

ssize_t read_file(const char* name, int fd, void* into, size_t size, off_t offset) {
  const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>(name);
  char path[4096] = {};
  if (::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path) - 1) < 0)
    return real(fd, into, size, offset);
  if (!fails(path, /*is_open=*/false)) return real(fd, into, size, offset);
  static const std::string call = variable("BRAID_FAIL_CALL");
  if (call == "end") return 0;
  if (call == "short") return real(fd, into, (size + 1) / 2, offset);
  return -1;
}

mode_t mode_in(int flags, va_list& arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_file("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_file("open64", path, flags, mode);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) { return read_file("pread", fd, into, size, offset); }
ssize_t pread64(int fd, void* into, size_t size, off_t offset) { return read_file("pread64", fd, into, size, offset); }

}  // extern "C"
