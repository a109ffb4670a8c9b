// How fast `braid doctor` reads logs: MB/s, compared with the minimum for any reader: counting the lines of the same
// file.
//   bench_doctor_scan [MEGABYTES] [FOLDER]
// Each log is long, healthy, and ends with one error, which must be found.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/strings.h"
#include "cluster/doctor/report.h"

namespace {

using namespace braid;

constexpr int kRounds = 3;

std::string iteration_line(int i, const std::string& prefix) {
  return fmt::format(
      "{} [2026-11-15 {:02}:{:02}:{:02}.620204] iteration {:8}/ 5000000 | consumed samples: {:12} | elapsed time per "
      "iteration (ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): 402.1 | tokens per GPU (tokens/s/GPU): 9266.8 | "
      "learning "
      "rate: 2.946396E-03 | global batch size:   256 | lm loss: {:.6E} | seq_load_balancing_loss: 1.015603E+00 | loss "
      "scale: 1.0 | grad norm: 1.248 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
      prefix, i / 3600 % 24, i / 60 % 60, i % 60, i, 256LL * i, 500.0 + i % 97, 10.0 / (1 + i % 1000));
}

struct Log {
  const char* name;
  std::function<std::string(int)> line;
  const char* prefix = "";
};

const std::vector<Log> kLogs = {
    {"iteration lines", [](int i) { return iteration_line(i, ""); }},
    {"with srun's labels", [](int i) { return iteration_line(i / 8, fmt::format("{}: ", i % 8)); }, "3: "},
    {"with [rankN]:", [](int i) { return iteration_line(i / 8, fmt::format("[rank{}]:", i % 8)); }},
    {"short lines",
     [](int i) {
       return fmt::format("[rank{}]: sample {} of shard {:05} has {} tokens\n", i % 8, i, i / 1000, i % 4096);
     }},
    {"NCCL_DEBUG=INFO",
     [](int i) {
       return fmt::format(
           "a{:02}:{}:{} [{}] NCCL INFO Channel {:02}/0 : {}[{}] -> {}[{}] [send] via NET/IB/{}/GDRDMA\n", i % 32,
           4000 + i % 8, 4300 + i % 8, i % 8, i % 16, i % 256, i % 8, (i + 8) % 256, i % 8, i % 8);
     }},
    {"every line an error", [](int i) { return fmt::format("[rank{}]: ValueError: sample {} is broken\n", i % 8, i); }},
};

std::string write_log(const Log& log, std::size_t bytes, const std::string& folder) {
  const std::string path = folder + "/doctor_bench.log";
  std::ofstream file(path, std::ios::binary);
  std::string block;
  for (std::size_t written = 0, i = 1; written < bytes; written += block.size()) {
    for (block.clear(); block.size() < (1 << 20); ++i) block += log.line(static_cast<int>(i));
    file << block;
  }
  for (const char* line : {"Traceback (most recent call last):", "  File \"/w/train.py\", line 3, in main",
                           "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."})
    file << log.prefix << (*log.prefix ? "" : "[rank3]: ") << line << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
  return path;
}

// CPU time, so that other load on the machine does not count; the best round.
double now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

std::size_t count_lines(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  std::vector<char> buffer(1 << 20);
  std::size_t lines = 0;
  for (ssize_t size; (size = read(fd, buffer.data(), buffer.size())) > 0;)
    for (const char *at = buffer.data(), *end = at + size;
         (at = static_cast<const char*>(std::memchr(at, '\n', static_cast<std::size_t>(end - at)))); ++at)
      ++lines;
  close(fd);
  return lines;
}

std::vector<std::string> measure(const Log& log, std::size_t bytes, const std::string& folder) {
  const std::string path = write_log(log, bytes, folder);
  const double size = static_cast<double>(std::filesystem::file_size(path));
  const double counting = seconds([&] {
    if (count_lines(path) == 0) throw std::runtime_error("no lines");
  });
  const double reading = seconds([&] {
    std::vector<std::string> skipped;
    const Diagnosis diagnosis = examine_logs(find_logs({path}), {}, skipped);
    if (diagnosis.cause != Cause::GpuOom || diagnosis.first_rank != 3)
      throw std::runtime_error("wrong: " + to_text(diagnosis));
  });
  std::filesystem::remove(path);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {log.name,
          fmt::format("{:.0f}", size / 1e6),
          fmt::format("{:.0f}", size / 1e6 / reading),
          fmt::format("{:.0f}", size / 1e6 / counting),
          fmt::format("{:.2f}", reading / counting),
          fmt::format("{:.1f}", static_cast<double>(usage.ru_maxrss) / 1024)};
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t megabytes = argc > 1 ? std::stoul(argv[1]) : 400;
  const std::string folder = argc > 2 ? argv[2] : std::filesystem::temp_directory_path().string();
  std::vector<std::vector<std::string>> rows;
  for (const Log& log : kLogs) rows.push_back(measure(log, megabytes * 1000000, folder));
  fmt::print(
      "{}", format_table({"log", "MB", "doctor MB/s", "counting lines MB/s", "times as long", "peak memory MB"}, rows));
}
