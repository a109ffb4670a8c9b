#include "data/samples/lane_set.h"

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/sample_reader.h"

namespace braid {
namespace {

// A data set has pictures only: nothing that other encoders take.
std::vector<int> tokens_without_input(const LaneSetOptions& options) {
  std::vector<int> tokens;
  for (const auto& [encoder, id] : options.media)
    if (!options.vision || encoder != options.vision->encoder) tokens.push_back(id);
  return tokens;
}

// Positions of training depend on the contents of the shards, too.
std::shared_ptr<const Blend> opened_blend(const LaneSetOptions& options, const ReadRetries& retries) {
  auto blend = std::make_shared<Blend>(*open_blend(options.data.path, options.split));
  if (options.is_training) read_contents(blend, retries);
  return blend;
}

ReadRetries retries_of(const LaneSetOptions& options, const std::shared_ptr<BadSamples>& bad) {
  return {.pauses = options.read_pauses, .say = [bad](const std::string& text) { bad->say(text); }};
}

std::string inspect_flags(const LaneSetOptions& options) {
  const DataConfig& data = options.data;
  std::string flags = fmt::format(" --data.tokenizer {} --data.prompt_format {} --data.sequence_length {}",
                                  in_quotes(data.tokenizer), data.prompt_format, options.sequence_length);
  for (const auto& [key, value] : mapped_fields(data.fields))
    flags += fmt::format(" --data.fields.{} {}", key, in_quotes(value));
  return flags;
}

}  // namespace

LaneSet::LaneSet(LaneSetOptions given)
    : options(std::move(given)),
      bad(options.bad ? options.bad : std::make_shared<BadSamples>(options.data.max_bad_samples, nullptr)),
      blend(opened_blend(options, retries_of(options, bad))),
      reader(blend, kMostOpenShards, retries_of(options, bad)),
      sequences(options.data, std::make_shared<Tokenizer>(load_tokenizer(options.data.tokenizer)), options.vision,
                options.sequence_length, tokens_without_input(options)) {
  bad->set_inspect_flags(inspect_flags(options));
  std::vector<Problem> problems = unreadable_leaves(*blend, options.data.fields);
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

OrderConfig order_of(const LaneSetOptions& options) {
  const LoaderConfig& loader = options.loader;
  return {.lanes = options.lanes,
          .workers = loader.num_workers,
          .seed = options.seed,
          .is_training = options.is_training,
          .shuffle_buffer = loader.shuffle_buffer,
          .max_samples_per_sequence = loader.max_samples_per_sequence};
}

void check_positions(const LaneSetOptions& options, const Blend& blend, const SequenceSettings& settings,
                     const std::vector<std::string>& positions) {
  stored_identity(positions.at(0));  // mock samples have other positions
  if (std::ssize(positions) != options.lanes)
    throw ConfigError({fmt::format("the checkpoint has positions of {} of the data set, but this run has {}",
                                   counted(std::ssize(positions), "lane"), options.lanes),
                       "loader.lanes", fmt::format("use loader.lanes={}", positions.size())});
  open_state(pack_lane_identity(blend, options.data.fields, options.loader, order_of(options), 0, settings),
             positions.front());
}

ReplicaLanes::ReplicaLanes(std::shared_ptr<const LaneSet> set, const Replicas& replicas,
                           const std::vector<std::string>& positions)
    : set_(std::move(set)),
      per_replica_(set_->options.lanes / replicas.all),
      first_lane_(replicas.first * per_replica_),
      pool_(set_->options.loader.threads),
      turns_(static_cast<std::size_t>(replicas.count)) {
  const PackSources sources = {set_->blend, set_->reader, set_->sequences, set_->options.data.fields, bad(), pool_};
  for (int i = 0; i < replicas.count * per_replica_; ++i) {
    lanes_.push_back(std::make_unique<PackLane>(sources, set_->options.loader, set_->order(), first_lane_ + i));
    if (!positions.empty()) lanes_.back()->restore(positions[static_cast<std::size_t>(first_lane_ + i)]);
  }
}

Pack ReplicaLanes::next(int replica) {
  int& turn = turns_[static_cast<std::size_t>(replica)];
  const int number = replica * per_replica_ + turn;
  turn = (turn + 1) % per_replica_;
  PackLane& lane = *lanes_[static_cast<std::size_t>(number)];
  for (int attempt = 0; attempt < 2; ++attempt)  // after the end of evaluation, again from the start
    if (std::optional<Pack> pack = lane.next()) {
      for (ReadSample& sample : *pack) sample.lane = first_lane_ + number;
      return *std::move(pack);
    }
  throw DataError(fmt::format("lane {} of split '{}' has no sample that can be used in a sequence of {} tokens: {}",
                              first_lane_ + number, set_->options.split, set_->options.sequence_length,
                              bad().why_none_is_left()));
}

std::vector<ReplicaLanes::Position> ReplicaLanes::positions(int replica) const {
  std::vector<Position> positions;
  for (int i = replica * per_replica_; i < (replica + 1) * per_replica_; ++i)
    positions.push_back({first_lane_ + i, lanes_[static_cast<std::size_t>(i)]->save()});
  return positions;
}

}  // namespace braid
