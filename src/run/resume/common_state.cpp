#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "run/resume/stored_state.h"

namespace braid {
namespace {

std::optional<std::int64_t> integer(const PickleValue& value) { return value_of<std::int64_t>(value); }

// The integer of this key in the first item of a list.
std::optional<std::int64_t> integer_of_first(const PickleValue& list, const char* key) {
  const auto* items = as<PickleList>(list);
  return items && !items->items.empty() ? integer(find(items->items.front(), key)) : std::nullopt;
}

std::optional<int> small_integer(const PickleValue& value) {
  const auto whole = integer(value);
  return whole && std::in_range<int>(*whole) ? std::optional(static_cast<int>(*whole)) : std::nullopt;
}

std::optional<double> number(const PickleValue& value) {
  if (const auto* real = as<double>(value)) return *real;
  const auto whole = integer(value);
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

// The values come from a file and may be of any type.
std::string text_of(const StateValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return in_quotes(*text);
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

}  // namespace

PickleValue to_pickle(const CommonState& state) {
  const RunPosition& position = state.position;
  std::vector<std::pair<std::string, PickleValue>> scheduler;
  for (const auto& [key, value] : state_dict(state.schedule))
    scheduler.emplace_back(key, std::visit([](const auto& v) { return pickle(v); }, value));
  return pickle_dict(
      {{"args", pickle_dict({{"iteration", pickle(position.iteration)},
                             {"consumed_train_samples", pickle(position.consumed_samples)},
                             {"world_size", pickle(state.world_size)},
                             {"recipe", pickle(state.recipe)},
                             {"initialized_from", pickle(state.initialized_from)},
                             {"data_positions", pickle_list(vector_of<PickleValue>(state.data_positions, pickle))}})},
       {"checkpoint_version", pickle(3.0)},
       {"iteration", pickle(position.iteration)},
       {"opt_param_scheduler", pickle_dict(std::move(scheduler))},
       {"content_metadata", pickle_dict({{"distrib_optim_sharding_type",
                                          pickle(state.fully_reshardable ? "fully_reshardable" : "dp_reshardable")},
                                         {"chained_optim_avoid_prefix", pickle(true)},
                                         {"singleton_local_shards", pickle(false)}})}});
}

StoredRun parse_common(const PickleValue& common, const std::string& file) {
  const auto iteration = integer(find(common, "iteration"));
  if (!iteration) throw DataError(fmt::format("{} does not contain an iteration number", file));
  StoredRun run = {.position = {.iteration = *iteration}};
  if (const auto* scheduler = as<PickleDict>(find(common, "opt_param_scheduler")))
    for (const auto& [name, value] : scheduler->items) {
      const auto* key = as<std::string>(name);
      if (!key) continue;
      if (const auto* whole = as<std::int64_t>(value)) run.scheduler.emplace_back(*key, *whole);
      if (const auto* real = as<double>(value)) run.scheduler.emplace_back(*key, *real);
      if (const auto* text = as<std::string>(value)) run.scheduler.emplace_back(*key, *text);
    }
  const PickleValue args = find(common, "args");
  const auto consumed = integer(find(args, "consumed_train_samples"));
  // Some trainers store no sample count; the scheduler's step count is in samples too.
  run.position.consumed_samples = consumed ? *consumed : with_state({}, run.scheduler).num_steps;
  if (run.position.iteration < 0 || run.position.consumed_samples < 0)
    throw DataError(fmt::format("{}: iteration {} after {} samples is invalid", file, run.position.iteration,
                                run.position.consumed_samples));
  run.recipe = value_of<std::string>(find(args, "recipe")).value_or("");
  run.initialized_from = value_of<std::string>(find(args, "initialized_from")).value_or("");
  if (const auto* positions = as<PickleList>(find(args, "data_positions")))
    for (const PickleValue& item : positions->items)
      if (const auto* of_lane = as<std::string>(item)) run.data_positions.push_back(*of_lane);
  return run;
}

PickleValue param_groups(const OptimizerConfig& config, const LrSchedule& schedule, std::int64_t steps, bool experts) {
  std::vector<PickleValue> groups;
  const auto add = [&](double wd_mult, bool expert) {
    groups.push_back(pickle_dict({{"wd_mult", pickle(wd_mult)},
                                  {"lr_mult", pickle(1.0)},
                                  {"is_expert_parallel", pickle(expert)},
                                  {"default_config", pickle(true)},
                                  {"is_decoupled_lr", pickle(false)},
                                  {"max_lr", pickle(schedule.max_lr)},
                                  {"min_lr", pickle(schedule.min_lr)},
                                  {"lr", pickle(schedule.learning_rate())},
                                  {"betas", pickle_tuple({pickle(config.beta1), pickle(config.beta2)})},
                                  {"eps", pickle(config.eps)},
                                  {"weight_decay", pickle(wd_mult * schedule.weight_decay())},
                                  {"step", pickle(steps)}}));
  };
  add(1.0, false);
  add(0.0, false);
  if (experts) add(1.0, true);
  return pickle_list(std::move(groups));
}

std::optional<std::int64_t> steps_of(const PickleValue& param_groups) { return integer_of_first(param_groups, "step"); }

PickleValue to_pickle(const LossScale::State& state) {
  return pickle_dict({{"scale", pickle(state.value)},
                      {"growth_tracker", pickle(state.finite_steps)},
                      {"hysteresis_tracker", pickle(state.overflows_left)}});
}

std::optional<LossScale::State> parse_loss_scale(const PickleValue& state) {
  const auto scale = number(find(state, "scale"));
  const auto growth = small_integer(find(state, "growth_tracker"));
  const auto hysteresis = small_integer(find(state, "hysteresis_tracker"));
  if (!scale || !growth || !hysteresis) return std::nullopt;
  return LossScale::State{*scale, *growth, *hysteresis};
}

PickleValue rng_state(std::int64_t seed) { return pickle_list({pickle_dict({{"seed", pickle(seed)}})}); }

std::optional<std::int64_t> seed_of(const PickleValue& rng_state) { return integer_of_first(rng_state, "seed"); }

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

void check_schedule(const LrSchedule& own, const ScheduleState& stored, const CheckpointConfig& config,
                    const std::string& folder) {
  const char* const key = "checkpoint.scheduler";
  if (config.scheduler == ResumeWith::Checkpoint)
    if (const auto why = why_unusable(with_state(own, stored)))
      throw ConfigError({fmt::format("the schedule in {} cannot be used: {}", folder, *why), key,
                         "use this run's rates and lengths with --override-opt-param-scheduler"});
  if (config.scheduler != ResumeWith::Same) return;
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
