// Preloaded into a program (LD_PRELOAD), this library counts the operations that change files below one folder, and
// kills the process that reaches a given one, like a power failure at that point. It covers every call that a save
// makes; compare with `strace -f -e trace=%file,%desc`.
#include "support/file_operations.h"
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using braid::testing::FileOperations;

FileOperations* shared() {
  static FileOperations* const operations = [] {
    const char* path = std::getenv(braid::testing::kOperationsFile);
    const int fd = path ? static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0)) : -1;
    void* memory =
        fd < 0 ? MAP_FAILED : ::mmap(nullptr, sizeof(FileOperations), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) ::close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<FileOperations*>(memory);
  }();
  return operations;
}

std::string path_of(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "";
}

std::string path_at(int folder, const char* path) {
  if (path[0] == '/') return path;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + path;
  char here[4096];
  return ::getcwd(here, sizeof here) ? std::string(here) + "/" + path : path;
}

// Called before the operation.
void count(const std::string& path) {
  FileOperations* operations = shared();
  static const char* const folder = std::getenv(braid::testing::kOperationsFolder);
  if (!operations || !folder || path.compare(0, std::char_traits<char>::length(folder), folder) != 0) return;
  if (operations->count.fetch_add(1) + 1 == operations->kill_at) ::kill(::getpid(), SIGKILL);
}

bool is_of_lower_layer(const std::string& path) {
  struct stat info {};
  const std::size_t slash = path.rfind('/');
  return shared() && shared()->overlay && path.compare(slash + 1, 5, "iter_") == 0 &&
         ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

template <class Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool changes(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0 || (flags & O_ACCMODE) != O_RDONLY; }

int refuse_rename() {
  errno = EXDEV;
  return -1;
}

}  // namespace

// The real function of the same name and type.
#define NEXT(function) next(&::function, #function)

extern "C" {

#define OPEN(name)                                                                         \
  int name(const char* path, int flags, ...) {                                             \
    va_list arguments;                                                                     \
    va_start(arguments, flags);                                                            \
    const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments);                                                                     \
    if (changes(flags)) count(path_at(AT_FDCWD, path));                                    \
    return NEXT(name)(path, flags, mode);                                                  \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                       \
  int name(int folder, const char* path, int flags, ...) {                                 \
    va_list arguments;                                                                     \
    va_start(arguments, flags);                                                            \
    const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments);                                                                     \
    if (changes(flags)) count(path_at(folder, path));                                      \
    return NEXT(name)(folder, path, flags, mode);                                          \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void* data, size_t size) {
  count(path_of(fd));
  return NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  count(path_of(fd));
  return NEXT(pwrite)(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  count(path_of(fd));
  return NEXT(pwrite64)(fd, data, size, offset);
}
int fsync(int fd) {
  count(path_of(fd));
  return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
  count(path_of(fd));
  return NEXT(fdatasync)(fd);
}
int ftruncate(int fd, off_t size) noexcept {
  count(path_of(fd));
  return NEXT(ftruncate)(fd, size);
}
int rename(const char* from, const char* to) noexcept {
  count(path_at(AT_FDCWD, from));
  if (is_of_lower_layer(path_at(AT_FDCWD, from))) return refuse_rename();
  return NEXT(rename)(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  count(path_at(from_folder, from));
  if (is_of_lower_layer(path_at(from_folder, from)) || is_of_lower_layer(path_at(to_folder, to)))
    return refuse_rename();
  return NEXT(renameat2)(from_folder, from, to_folder, to, flags);
}
int link(const char* from, const char* to) noexcept {
  count(path_at(AT_FDCWD, to));
  return NEXT(link)(from, to);
}
int unlink(const char* path) noexcept {
  count(path_at(AT_FDCWD, path));
  return NEXT(unlink)(path);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  count(path_at(folder, path));
  return NEXT(unlinkat)(folder, path, flags);
}
int remove(const char* path) noexcept {
  count(path_at(AT_FDCWD, path));
  return NEXT(remove)(path);
}
int rmdir(const char* path) noexcept {
  count(path_at(AT_FDCWD, path));
  return NEXT(rmdir)(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  count(path_at(AT_FDCWD, path));
  return NEXT(mkdir)(path, mode);
}

}  // extern "C"
