#include "data/indexed/gpt_data.h"
#include "base/files.h"
#include "base/strings.h"
#include "data/shards/energon_random.h"

namespace braid {
namespace {

bool has_files(const std::string& prefix) {
  return is_file(prefix + std::string(kIndexedIndex)) && is_file(prefix + std::string(kIndexedTokens));
}

int number_of_split(const std::string& name) {
  static const std::map<std::string, int> kNumbers = {{"train", 0}, {"val", 1}, {"valid", 1}, {"test", 2}};
  if (const auto number = value_in(kNumbers, name)) return *number;
  throw ConfigError({fmt::format("Megatron's text has no split {}", in_quotes(name)), "data.split data.valid_split",
                     "use train, val or test; data.document_split says how large they are"});
}

}  // namespace

bool names_gpt_data(const std::string& path) {
  const fs::path meta = fs::path(path) / kMetaFolder;
  if (is_file(path) || is_file(meta / ".info.json") || is_file(meta / ".info.yaml")) return false;
  if (has_files(path)) return true;
  const std::vector<std::string> words = words_of(path);
  return words.size() > 1 && (parse_double(words[0]) || std::ranges::any_of(words, has_files));
}

std::string data_path_from(const std::string& folder, const std::string& path) {
  std::vector<std::string> words = words_of(path);
  const auto is_list = [&] { return parse_double(words[0]) || has_files(fs::path(folder) / words[0]); };
  if (words.size() < 2 || !is_list()) return fs::path(folder) / path;
  for (std::size_t i = parse_double(words[0]) ? 1 : 0, step = i + 1; i < words.size(); i += step)
    words[i] = fs::path(folder) / words[i];
  return joined(words, " ");
}

GptData::GptData(GptDataOptions given) : options_(std::move(given)) {
  const GptPaths paths =
      has_files(options_.path) ? GptPaths{.prefixes = {options_.path}} : parse_gpt_paths(options_.path);
  for (const std::string& prefix : paths.prefixes) texts_.push_back(open_text(prefix));
  paths.weights.empty() ? plan_unweighted() : plan_weighted(paths.weights);
  identity_ = make_identity();
}

GptData::Text GptData::open_text(const std::string& prefix) const {
  if (!has_files(prefix))
    throw ConfigError({fmt::format("there are no files '{0}{1}' and '{0}{2}'", prefix, kIndexedTokens, kIndexedIndex),
                       "data.path", "give the path of the two files without their endings"});
  Text text = {.prefix = prefix, .file = std::make_shared<IndexedFile>(prefix)};
  std::tie(text.first, text.end) =
      sequences_of_split(options_.shares, number_of_split(options_.split), text.file->sequences());
  text.tokens = sum_of<std::int64_t>(text.file->lengths(text.first, text.end), std::identity());
  text.request = {.sequence_length = options_.sequence_length, .seed = options_.seed};
  return text;
}

void GptData::plan_weighted(const std::vector<double>& weights) {
  const std::vector<double> shares = normalized(weights);
  const BlendSizes sizes = blend_sizes(shares, options_.samples);
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (sizes.built[i] < 1)
      throw ConfigError(
          {fmt::format("the weight {:g} of '{}' is too small beside the others", weights[i], texts_[i].prefix),
           "data.path", "use weights that differ less"});
    texts_[i].request.samples = sizes.built[i];
  }
  samples_ = sizes.all;
  shares_ = normalized(shares);  // once more, as BlendedDataset does: it changes the last bits
}

void GptData::plan_unweighted() {
  if (texts_.size() == 1) texts_[0].request.samples = options_.samples;
  const auto samples =
      vector_of<std::int64_t>(texts_, [](const Text& text) { return gpt_epochs(text.tokens, text.request).samples; });
  samples_ = sum_of<std::int64_t>(samples, std::identity());
  if (texts_.size() == 1) return;
  if (samples_ < options_.samples)
    throw ConfigError({fmt::format("the texts have {}, but the run needs {}; without weights, each is read once",
                                   counted(samples_, "sample"), options_.samples),
                       "data.path", "give each text a weight: WEIGHT PREFIX WEIGHT PREFIX"});
  samples_ = options_.samples;
  shares_ = normalized({samples.begin(), samples.end()});
}

LaneIdentity GptData::make_identity() const {
  LaneIdentity identity;
  const auto add = [&](std::string name, const auto& value) {
    identity.emplace_back(std::move(name), fmt::format("{}", value));
  };
  add("the order of data.path", "Megatron's");
  add("train.seed", options_.seed);
  add("data.sequence_length", options_.sequence_length);
  add("the number of texts in data.path", texts_.size());
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    const Text& text = texts_[i];
    const GptEpochs epochs = gpt_epochs(text.tokens, text.request);
    add(fmt::format("the text '{}'", text.prefix),
        fmt::format("sequences {}-{} with {} (contents {:x}), share {}", text.first, text.end,
                    counted(text.tokens, "token"), sha1_number(text.file->contents_hash()),
                    shares_.empty() ? 1 : shares_[i]));
    add(fmt::format("the length of the run, and with it how often '{}' is read,", text.prefix),
        counted(epochs.count, "time") + (epochs.last_apart ? ", the last time in an order of its own" : ""));
  }
  return identity;
}

std::string GptData::position(std::int64_t sample) const {
  StreamState state;
  state.number(sample, INT64_MAX);
  return seal_state(identity_, state);
}

std::int64_t GptData::sample_at(const std::vector<std::string>& positions) const {
  if (positions.size() != 1)
    throw ConfigError(
        {fmt::format("the checkpoint has positions of {} of another data set, and Megatron's text has none",
                     counted(std::ssize(positions), "lane")),
         "data.path", "use the same data, or read it from its start: checkpoint.load_data=false"});
  StreamState state = open_state(identity_, positions[0]);
  std::int64_t sample = 0;
  state.number(sample, INT64_MAX);
  state.expect_end();
  return sample;
}

const GptData::Order& GptData::order() const {
  std::call_once(ordered_, [&] {
    for (const Text& text : texts_)
      order_.texts.push_back(gpt_order(text.first, text.file->lengths(text.first, text.end), text.request));
    if (!shares_.empty()) order_.blend = blend_order(shares_, samples_);
    for (std::size_t i = 0; i < order_.blend.sets.size(); ++i) {
      const std::size_t text = order_.blend.sets[i];
      if (order_.blend.samples[i] >= order_.texts[text].samples())
        throw ConfigError({fmt::format("the blend needs more than the {} of '{}' that Megatron makes",
                                       counted(order_.texts[text].samples(), "sample"), texts_[text].prefix),
                           "data.path", "use another length of the run, or other weights"});
    }
  });
  return order_;
}

const GptOrder& GptData::order_of(std::size_t text) const { return order().texts[text]; }

GptData::Place GptData::place_of(std::int64_t sample) const {
  BRAID_CHECK(sample >= 0, "sample {}", sample);
  const BlendOrder& blend = order().blend;
  const auto at = static_cast<std::size_t>(sample % samples_);
  if (shares_.empty()) return {.sample = static_cast<std::int64_t>(at)};
  return {.text = blend.sets[at], .sample = blend.samples[at]};
}

std::vector<int> GptData::read(const IndexedFile& file, const Place& place) const {
  const GptOrder& order = order_of(place.text);
  const auto row = static_cast<std::size_t>(order.shuffle[static_cast<std::size_t>(place.sample)]);
  const GptOrder::Start begin = order.starts[row], end = order.starts[row + 1];
  std::vector<int> ids;
  ids.reserve(static_cast<std::size_t>(options_.sequence_length) + 1);
  for (std::uint32_t at = begin.place; at <= end.place; ++at)
    file.append(order.sequences[at], at == begin.place ? begin.offset : 0,
                at == end.place ? std::optional<std::int64_t>(end.offset + 1) : std::nullopt, ids);
  const auto refused = std::ranges::find_first_of(ids, options_.refused);
  if (refused != ids.end())
    throw DataError(
        fmt::format("the text '{}' has token {}, which stands for the input of an encoder: give the model "
                    "another id for it, or use other text",
                    texts_[place.text].prefix, *refused));
  return ids;
}

std::vector<int> GptData::read(std::int64_t sample) const {
  const Place place = place_of(sample);
  const auto& pauses = options_.retries.pauses;
  for (std::size_t attempt = 0;; ++attempt) try {
      if (attempt == 0) return read(*texts_[place.text].file, place);
      return read(IndexedFile(texts_[place.text].prefix), place);
    } catch (const SystemReadError& e) {
      if (attempt == pauses.size()) throw;
      const std::chrono::duration<double> pause = pauses[attempt];
      if (options_.retries.say) options_.retries.say(fmt::format("{}; trying again in {} s", e.what(), pause.count()));
      std::this_thread::sleep_for(pause);
    }
}

}  // namespace braid
