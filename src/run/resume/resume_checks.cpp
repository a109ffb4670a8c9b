#include "run/resume/resume_checks.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/file_names.h"

namespace braid {
namespace {

// The values come from a file and may be of any type.
std::string text_of(const StateValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return in_quotes(*text);
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

}  // namespace

StoredRun read_run(const DistCheckpoint& checkpoint) {
  const std::string& folder = checkpoint.folder();
  StoredRun stored = parse_common(checkpoint.common(), fmt::format("{}/{}", folder, kCommonFile));
  const std::int64_t iteration = stored.position.iteration;
  if (iteration_of(std::filesystem::path(folder).filename().string()) != iteration)
    throw DataError(
        fmt::format("{}/{} is from iteration {}, which contradicts the folder's name", folder, kCommonFile, iteration));
  return stored;
}

PickleValue find_object(DistCheckpoint& checkpoint, const std::string& begin) {
  const auto& objects = checkpoint.metadata().objects;
  const auto found = objects.lower_bound(begin);
  return found != objects.end() && found->first.starts_with(begin) ? checkpoint.read_object(found->first) : nullptr;
}

std::optional<std::int64_t> stored_seed(DistCheckpoint& checkpoint, const StoredSet& any_set) {
  const PickleValue state = find_object(checkpoint, any_set.branch + "rng_state/");
  return state ? seed_of(state) : std::nullopt;
}

void check_schedule(const LrSchedule& own, const ScheduleState& stored, const CheckpointConfig& config,
                    const std::string& folder) {
  const char* const key = "checkpoint.scheduler";
  if (config.scheduler == "checkpoint")
    if (const auto why = why_unusable(with_state(own, stored)))
      throw ConfigError({fmt::format("the schedule in {} cannot be used: {}", folder, *why), key,
                         "use this run's rates and lengths with --override-opt-param-scheduler"});
  if (config.scheduler != "same") return;
  std::vector<std::string> texts;
  for (const ScheduleDifference& difference : differences(own, stored))
    texts.push_back(fmt::format("{} is {} in the checkpoint and {} in this run", difference.key,
                                text_of(difference.stored), text_of(difference.own)));
  if (texts.empty()) return;
  throw ConfigError({fmt::format("the learning rate schedule differs from {} (lengths are in samples): {}", folder,
                                 fmt::join(texts, ", ")),
                     key,
                     "use the same rates and lengths (with another --train-iters, keep the old decay length with "
                     "--lr-decay-samples), or use this run's with --override-opt-param-scheduler, or the checkpoint's "
                     "with --use-checkpoint-opt-param-scheduler"});
}

std::optional<std::int64_t> newest_sound_before(std::int64_t end, const std::string& root) {
  std::vector<std::int64_t> older = iterations_in(root);
  std::erase_if(older, [&](std::int64_t iteration) { return iteration >= end; });
  for (; !older.empty(); older.pop_back()) {
    try {
      read_run(DistCheckpoint(iteration_folder(root, older.back())));
      return older.back();
    } catch (const std::exception&) {  // this iteration is damaged, too
    }
  }
  return std::nullopt;
}

std::string fallback_advice(const std::string& root, std::int64_t iteration) {
  const auto older = newest_sound_before(iteration, root);
  if (!older) return kNoReadableCheckpoint;
  return fmt::format(
      "iteration {} in {} looks complete: resume from it with --load-fallback, which uses the newest readable one "
      "(check it first with: braid ckpt verify {} --iteration {})",
      *older, root, root, *older);
}

}  // namespace braid
