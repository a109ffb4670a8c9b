#include "predict/step_trace.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "log/trace.h"

namespace braid {
namespace {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& beside) : path_(beside + ".XXXXXX") {
    if (!mkdtemp(path_.data()))
      throw ConfigError({fmt::format("cannot write '{}'", beside), "--trace", "give the name of a file"});
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Trace::TimePoint at(double seconds) {
  return Trace::TimePoint(
      std::chrono::duration_cast<Trace::TimePoint::duration>(std::chrono::duration<double>(seconds)));
}

std::string coordinates_of(const ReducedWorld& world, int rank) {
  std::vector<std::string> all;
  for (int m = 0; m < std::ssize(world.modules); ++m) {
    const Module& module = world.modules[m];
    if (world.topology.module(m).dense.contains(rank))
      all.push_back(fmt::format("{}[{}]", module.name, module.dense.coordinates_of(world.full_rank(m, rank))));
  }
  return fmt::format("{}", fmt::join(all, " + "));
}

void trace_rank(const PlayedStep& step, int rank, const std::string& folder) {
  const auto& ops = step.schedule.ranks[rank];
  const auto& spans = step.play.ranks[rank];
  Trace trace(folder, rank, coordinates_of(step.world, rank));
  const int communication = trace.add_track("gathers and reductions");
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    if (!is_shown(op, spans[i])) continue;
    std::vector<Trace::Arg> args;
    if (op.computes() || op.kind == Op::Load) args.emplace_back("microbatch", op.microbatch);
    trace.add_span(describe(op, step.world.topology), at(spans[i].begin), at(spans[i].end), args,
                   op.starts_collective() ? communication : Trace::kMainTrack);
  }
}

}  // namespace

Play in_milliseconds(Play play) {
  for (auto& spans : play.ranks)
    for (OpSpan& span : spans) span = {1e3 * span.begin, 1e3 * span.end};
  play.end *= 1e3;
  return play;
}

void write_trace(const PlayedStep& step, const std::string& path) {
  const TemporaryFolder folder(path);
  for (int rank = 0; rank < step.world.topology.world_size(); ++rank) trace_rank(step, rank, folder.path());
  merge_traces(folder.path());
  std::error_code error;
  std::filesystem::rename(merged_trace_path(folder.path()), path, error);
  if (error)
    throw ConfigError(
        {fmt::format("cannot write '{}': {}", path, error.message()), "--trace", "give the name of a file"});
}

}  // namespace braid
