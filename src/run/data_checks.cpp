// What of the data set can be checked before a run starts, without libtorch.

#include "base/strings.h"
#include "data/inspect/reports.h"
#include "data/shards/lane.h"
#include "run/start_checks.h"

namespace braid {
namespace {

class DataCheck {
 public:
  DataCheck(const Recipe& recipe, const Topology& topology)
      : recipe_(recipe), topology_(topology),
        options_(lane_set_options(recipe, topology, recipe.train.seed, DataUse::Training)) {}

  DataFindings run(const std::vector<DataUse>& uses, const StoredData& stored) {
    if (is_gpt_data(recipe_.data)) return run_gpt(uses, stored);
    attempt("data.path", [&] { kind_of_path(options_.data.path); });
    for (const DataUse use : uses) check_split(use);
    for (const auto& field : mapped_fields(options_.data.fields)) {
      const std::string key = fmt::format("data.fields.{}", field.first);
      attempt(key, [&] { parse_field_source(field.second, key); });
    }
    check_text();
    check_pictures();
    attempt("data.path", [&] { check_samples(); });
    const bool trains = std::ranges::find(uses, DataUse::Training) != uses.end();
    trains ? check_continues_at(stored) : compare_text(stored);
    return std::move(found_);
  }

 private:
  DataFindings run_gpt(const std::vector<DataUse>& uses, const StoredData& stored) {
    for (const DataUse use : uses)
      attempt("data.path", [&] {
        const bool trains = use == DataUse::Training;
        const GptData data(
            gpt_data_options(recipe_, trains ? stored.seed.value_or(options_.seed) : options_.seed, use));
        if (trains && recipe_.checkpoint.load_data && !stored.positions.empty()) data.sample_at(stored.positions);
      });
    if (!options_.data.tokenizer.empty()) open_tokenizer();
    if (const std::vector<std::string> unused = keys_without_effect(); !unused.empty())
      found_.warnings.push_back(
          fmt::format("data.path is Megatron's text, which these keys do not affect: {}", joined(unused, ", ")));
    return std::move(found_);
  }

  std::vector<std::string> keys_without_effect() const {
    const DataConfig& data = options_.data;
    const LoaderConfig& loader = options_.loader;
    std::vector<std::string> keys;
    for (const auto& [key, is_set] : {std::pair("data.prompt_format", !data.prompt_format.empty()),
                                      {"data.image_tag", data.image_tag != DataConfig().image_tag},
                                      {"data.system", !data.system.empty()},
                                      {"data.fields", !mapped_fields(data.fields).empty()},
                                      {"data.append_eod", data.append_eod != DataConfig().append_eod},
                                      {"data.over_long", data.over_long != DataConfig().over_long},
                                      {"loader.lanes", loader.lanes.has_value()},
                                      {"loader.num_workers", loader.num_workers != LoaderConfig().num_workers},
                                      {"loader.packing_buffer", loader.packing_buffer.has_value()},
                                      {"loader.shuffle_buffer", loader.shuffle_buffer > 0},
                                      {"loader.max_samples_per_sequence", loader.max_samples_per_sequence.has_value()}})
      if (is_set) keys.emplace_back(key);
    return keys;
  }

  // Null if it cannot be used.
  std::shared_ptr<const Tokenizer> open_tokenizer() {
    const DataConfig& data = options_.data;
    std::shared_ptr<const Tokenizer> tokenizer;
    if (!is_there(data.tokenizer)) {
      add({fmt::format("the tokenizer '{}' does not exist", data.tokenizer), "data.tokenizer",
           "give a tokenizer.json, a sentencepiece .model, or a folder with one of them"});
      return tokenizer;
    }
    attempt("data.tokenizer", [&] { tokenizer = std::make_shared<Tokenizer>(load_tokenizer(data.tokenizer)); });
    if (!tokenizer) return tokenizer;
    if (const int vocab = vocab_of(recipe_.model.model.language); tokenizer->vocab_size() > vocab)
      add({fmt::format("the tokenizer has {} tokens, but the model's vocabulary has {}", tokenizer->vocab_size(),
                       vocab),
           "data.tokenizer model.language.vocab", "use the model's tokenizer, or a larger model.language.vocab"});
    return tokenizer;
  }

  void check_text() {
    const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer();
    if (!tokenizer) return;
    attempt("data.prompt_format",
            [&] { sequences_.emplace(options_.data, tokenizer, options_.vision, options_.sequence_length); });
    if (!sequences_) return;
    settings_ = sequences_->settings();
    for (const std::string& warning : sequences_->warnings()) found_.warnings.push_back(warning);
  }

  void check_pictures() {
    const PictureConfig& pictures = options_.data.pictures;
    if (!options_.vision || options_.vision->square || pictures.fit == PictureFit::Dynamic) return;
    const int unit = options_.vision->patch * (options_.vision->pixel_shuffle ? 2 : 1);
    if (pictures.tile_side % unit != 0)
      add({fmt::format("tile_side={} must be a multiple of {}: the encoder's patches have {} x {} pixels{}",
                       pictures.tile_side, unit, options_.vision->patch, options_.vision->patch,
                       options_.vision->pixel_shuffle ? ", and 2 x 2 of them become one token" : ""),
           "data.pictures.tile_side", fmt::format("use {}", (pictures.tile_side / unit + 1) * unit)});
  }

  // A path that is not a data set has already been reported.
  void check_split(DataUse use) {
    if (std::ranges::find(found_.problems, "data.path", &Problem::where) != found_.problems.end()) return;
    const LaneSetOptions options = lane_set_options(recipe_, topology_, recipe_.train.seed, use);
    const char* keys = use == DataUse::Training ? "data.path data.split" : "data.path data.valid_split";
    std::shared_ptr<const Blend> blend;
    attempt(keys, [&] {
      blend = open_blend(options.data.path, options.split);
      throw_if_any(unreadable_leaves(*blend, options.data.fields));
    });
    if (!blend) return;
    attempt("loader.lanes loader.num_workers", [&] { check_lanes(blend, options); });
    for (const Problem& problem : unreadable_shards(*blend)) add({problem.what, keys, problem.fix});
    for (const Leaf& leaf : blend->leaves)
      for (std::string& warning : exclude_warnings(leaf.data.path, leaf.data.unknown_excludes))
        if (!contains(found_.warnings, warning)) found_.warnings.push_back(std::move(warning));
    (use == DataUse::Training ? blend_ : found_.evaluated) = std::move(blend);
  }

  // Runs after the checks of the text and the split, which have reported anything that cannot be opened.
  void check_continues_at(const StoredData& stored) {
    if (!recipe_.checkpoint.load_data || stored.positions.empty() || !blend_ || settings_.empty()) return;
    LaneSetOptions options = options_;
    options.seed = stored.seed.value_or(options.seed);
    attempt("data.path checkpoint.load", [&] {
      const auto blend = std::make_shared<Blend>(*blend_);
      read_contents(blend);
      check_positions(options, *blend, settings_, stored.positions);
    });
  }

  // Runs after the check of the text. Positions of mock samples, or from another version, do not describe the text.
  void compare_text(const StoredData& stored) try {
    if (stored.positions.empty()) return;
    for (const auto& [name, then] : stored_identity(stored.positions.front()))
      for (const auto& [own_name, now] : settings_)
        if (own_name == name && now != then && (name == "data.tokenizer" || name == "data.prompt_format"))
          found_.warnings.push_back(
              fmt::format("{} is not that of the training, and the model may not know its tokens: {} then, {} now",
                          name, then, now));
  } catch (const DataError&) {
  }

  // Each worker of a lane needs samples to train on; for an evaluation, one worker with samples is enough.
  static void check_lanes(const std::shared_ptr<const Blend>& blend, const LaneSetOptions& options) {
    const OrderConfig order = order_of(options);
    for (int lane = 0; lane < order.lanes; ++lane) {
      check_order(order, lane);
      bool has_samples = false;
      for (int i = 0; i < workers_of(order); ++i)
        has_samples |= worker_order(blend, order, first_worker(order, lane) + i)->has_samples;
      if (!has_samples)
        throw ConfigError({fmt::format("the split '{}' has too few samples for {}: lane {} has none", options.split,
                                       counted(order.lanes, "lane"), lane),
                           "", "use fewer lanes, or a larger split"});
    }
  }

  // After the checks of text and splits: whether the recipe suits the samples. Damage is found when they are read.
  void check_samples() {
    constexpr std::int64_t kLooked = 32;
    const std::shared_ptr<const Blend> blend = blend_ ? blend_ : found_.evaluated;
    if (!blend || !sequences_ || !found_.problems.empty()) return;
    const SpreadSamples samples(*blend, kLooked);
    SampleReader reader(blend);
    std::int64_t looked = 0, refused = 0, pictured = 0, too_long = 0, without_targets = 0, all = 0;
    std::string first_refused, first_pictured;
    for (const Leaf& leaf : blend->leaves) all += leaf.data.samples();
    for (std::int64_t i = 0; i < samples.size(); ++i) {
      const auto ref = samples.at(i);
      if (!ref) continue;
      ++looked;
      const auto name = [&] {
        return fmt::format("sample {} of shard {}", reader.name_of(*ref), in_quotes(reader.shard_of(*ref).name));
      };
      try {
        const Sample sample = reader.read(*ref);
        Conversation conversation = read_conversation(sample, blend->leaves[ref->leaf].spec, options_.data.fields);
        if (!conversation.pictures.empty() && pictured++ == 0) first_pictured = name();
        TokenSequence tokens = sequences_->encode(std::move(conversation));
        const bool is_long = std::ssize(tokens.ids) > sequences_->capacity();
        const bool predicts = sequences_->fit(tokens) != Unfit::WithoutTargets;
        if (!predicts) ++without_targets;
        if (is_long && predicts) ++too_long;
      } catch (const DataError& e) {
        if (refused++ == 0) first_refused = fmt::format("{}: {}", name(), e.what());
      }
    }
    if (looked == 0) return;
    warn_of_unfit(looked, too_long, without_targets);
    if (!options_.vision && (2 * pictured >= looked || pictured * all / looked > options_.data.max_bad_samples))
      add({fmt::format("the data set has pictures ({} of {} that were looked at, e.g. {}), but the recipe has no "
                       "encoder for them",
                       pictured, counted(looked, "sample"), first_pictured),
           "data.path topology.modules",
           "add an encoder of pictures to topology.modules and to the model, or use a data set without pictures"});
    else if (refused == looked)
      add({fmt::format("none of {} that were looked at can be used, e.g. {}", counted(looked, "sample"), first_refused),
           "data.path", "`braid data inspect` with this recipe lists the reasons"});
  }

  void warn_of_unfit(std::int64_t looked, std::int64_t too_long, std::int64_t without_targets) {
    const auto warn = [&](std::int64_t count, const std::string& what) {
      if (count > 0)
        found_.warnings.push_back(
            fmt::format("{} of {} that were looked at {}", count, counted(looked, "sample"), what));
    };
    const bool drops = options_.data.over_long == OverLong::Drop;
    warn(too_long, fmt::format("are longer than a sequence of {} tokens and will be {}", options_.sequence_length,
                               drops ? std::string("left out; ") + kAdviceOnLength : "cut"));
    warn(without_targets, "have nothing to predict and will be left out");
  }

  // Adds the problems that `open` throws. A problem without a recipe key is attributed to `keys`, and the place in a
  // file that it names becomes part of the message.
  void attempt(const std::string& keys, const std::function<void()>& open) {
    try {
      open();
    } catch (const ConfigError& e) {
      for (Problem problem : e.problems()) {
        const auto is_in = [&](const char* section) { return problem.where.starts_with(section); };
        const bool has_key = is_in("data.") || is_in("model.") || is_in("loader.") || is_in("train.");
        const bool is_file = problem.where.find_first_of("/.") != std::string::npos;
        if (!has_key && is_file && problem.what.find(problem.where) == std::string::npos)
          problem.what += fmt::format(" ({})", problem.where);
        if (!has_key) problem.where = keys;
        add(std::move(problem));
      }
    } catch (const std::runtime_error& e) {  // damage, and errors of the file system
      add({e.what(), keys, ""});
    }
  }

  // Adds a problem once, since both splits may have it.
  void add(Problem problem) {
    if (std::ranges::find(found_.problems, problem.what, &Problem::what) == found_.problems.end())
      found_.problems.push_back(std::move(problem));
  }

  const Recipe& recipe_;
  const Topology& topology_;
  const LaneSetOptions options_;
  std::shared_ptr<const Blend> blend_{};  // the training split
  std::optional<SequenceMaker> sequences_{};
  SequenceSettings settings_{};
  DataFindings found_{};
};

}  // namespace

DataFindings check_data(const Recipe& recipe, const Topology& topology, const std::vector<DataUse>& uses,
                        const StoredData& stored) {
  if (is_mock(recipe.data)) return {};
  if (recipe.data.set.path.empty())
    return {.problems = {{"the recipe needs a data set, and data.path is not set", "data.path data.mock",
                          "give --data-path PATH, or --mock-data for generated samples"}}};
  return DataCheck(recipe, topology).run(uses, stored);
}

std::vector<DataUse> data_uses(const Recipe& recipe) {
  if (!evaluates(recipe.train)) return {DataUse::Training};
  return {DataUse::Training, DataUse::Evaluation};
}

}  // namespace braid
