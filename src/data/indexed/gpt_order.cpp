#include "data/indexed/gpt_order.h"
#include <random>
#include <sstream>
#include "base/strings.h"

namespace braid {
namespace {

constexpr int kSplits = 3;
constexpr std::array<const char*, kSplits> kNames = {"train", "valid", "test"};
constexpr std::int64_t kMostNumbered = std::numeric_limits<std::uint32_t>::max() - 1;  // sequences, and samples
constexpr double kMostOfLastEpoch = 0.8;  // an epoch of which less is needed is shuffled apart
constexpr double kSurplus = 0.005;        // samples that Megatron builds beyond those that a blend needs
constexpr std::size_t kMostSets = 32766;

// The legacy generator of numpy: MT19937 from a plain seed.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  template <class Value>
  void shuffle(std::span<Value> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[up_to(static_cast<std::uint32_t>(i))]);
  }

 private:
  // A number from 0 to `most`: bits of a word, drawn again while they are too large.
  std::uint32_t up_to(std::uint32_t most) {
    const std::uint32_t mask = std::numeric_limits<std::uint32_t>::max() >> std::countl_zero(most);
    for (;;)
      if (const auto value = static_cast<std::uint32_t>(engine_()) & mask; value <= most) return value;
  }

  std::mt19937 engine_;
};

// numpy adds long lists in blocks of eight sums, and longer ones by halves.
double numpy_sum(std::span<const double> values) {
  constexpr std::size_t kSums = 8, kBlock = 128;
  if (values.size() < kSums) return std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() > kBlock) {
    const std::size_t half = values.size() / 2 / kSums * kSums;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, kSums> sums{};
  const std::size_t end = values.size() / kSums * kSums;
  for (std::size_t i = 0; i < end; ++i) sums[i % kSums] += values[i];
  const double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(end), values.end(), sum);
}

std::uint32_t numpy_seed(std::int64_t seed) {
  if (seed < 0 || seed > std::numeric_limits<std::uint32_t>::max())
    throw ConfigError({fmt::format("the order of Megatron's text needs a seed from 0 to 2^32 - 1, got {}", seed),
                       "train.seed", "use a smaller seed"});
  return static_cast<std::uint32_t>(seed);
}

void refuse_too_many(double count, const char* what, std::int64_t most = kMostNumbered) {
  if (count > static_cast<double>(most))
    throw ConfigError({fmt::format("{:.0f} {} of Megatron's text are more than {}", count, what, most), "data.path",
                       "train fewer samples, or divide the text into several files and blend them"});
}

// Where samples begin in the stream of all sequences.
std::vector<GptOrder::Start> cut(const std::vector<std::int32_t>& sequences, std::int64_t first,
                                 std::span<const std::int32_t> lengths, std::int64_t samples, std::int64_t length) {
  std::vector<GptOrder::Start> starts = {{}};
  starts.reserve(static_cast<std::size_t>(samples) + 1);
  std::size_t place = 0;
  std::int64_t offset = 0;
  while (std::ssize(starts) <= samples) {
    // A start is never a sequence's end: it is the last token of the sample before.
    std::int64_t missing = length + 1;
    for (;; ++place, offset = 0) {
      const std::int64_t left = lengths[static_cast<std::size_t>(sequences[place] - first)] - offset;
      if (left >= missing) break;
      missing -= left;
    }
    offset += missing - 1;
    starts.push_back({static_cast<std::uint32_t>(place), static_cast<std::int32_t>(offset)});
  }
  return starts;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> sequences_of_split(const std::string& shares, int split, std::int64_t all) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError({fmt::format("{} are not shares of train, valid and test: {}", in_quotes(shares), why),
                       "data.document_split", "write for example 969,30,1"});
  };
  std::vector<double> values;
  for (const std::string& text : braid::split(shares, ',')) {
    const auto begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
    const auto value = begin == text.npos ? std::nullopt : parse_double(text.substr(begin, end - begin + 1));
    if (!value || !(*value >= 0) || std::isinf(*value)) refuse(fmt::format("{} is not a share", in_quotes(text)));
    values.push_back(*value);
  }
  if (values.size() > kSplits) refuse("there are more than three");
  values.resize(kSplits);
  if (numpy_sum(values) == 0) refuse("all are 0");
  values = normalized(std::move(values));
  double low = 0;
  for (int i = 0; i < split; ++i) low += values[static_cast<std::size_t>(i)];
  const double high = low + values[static_cast<std::size_t>(split)];
  // Python's round() rounds halves to even, as nearbyint() does.
  const auto border = [&](double share) {
    return static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(all)));
  };
  const std::int64_t first = border(low), end = std::min(border(high), all);
  if (first >= end)
    throw ConfigError(
        {fmt::format("the {} split of {} has none of {}", kNames[split], in_quotes(shares), counted(all, "sequence")),
         "data.document_split", "give it a larger share"});
  return {first, end};
}

GptEpochs gpt_epochs(std::int64_t tokens, const GptRequest& request) {
  const std::int64_t length = request.sequence_length;
  BRAID_CHECK(length >= 1 && request.samples.value_or(1) >= 1, "samples of {} tokens", length);
  numpy_seed(request.seed);
  if (tokens < 1 || (!request.samples && tokens <= length))
    throw ConfigError({fmt::format("the split has {}, but a sample needs {}", counted(tokens, "token"), length + 1),
                       "data.path", "use more text, or a shorter data.sequence_length"});
  GptEpochs epochs;
  if (request.samples) {
    refuse_too_many(static_cast<double>(*request.samples), "samples");
    epochs.count = std::max<std::int64_t>((*request.samples * length + 1 + tokens - 1) / tokens, 1);
  }
  epochs.samples = (epochs.count * tokens - 1) / length;
  refuse_too_many(static_cast<double>(epochs.samples), "samples");
  if (epochs.count == 1) return epochs;
  epochs.first_apart = ((epochs.count - 1) * tokens - 1) / length;
  const std::int64_t of_last = *request.samples - epochs.first_apart, per_epoch = (tokens - 1) / length;
  epochs.last_apart = of_last < static_cast<std::int64_t>(kMostOfLastEpoch * static_cast<double>(per_epoch));
  return epochs;
}

GptOrder gpt_order(std::int64_t first, std::span<const std::int32_t> lengths, const GptRequest& request) {
  const std::int64_t tokens = sum_of<std::int64_t>(lengths, std::identity());
  const GptEpochs epochs = gpt_epochs(tokens, request);
  refuse_too_many(static_cast<double>(first + std::ssize(lengths)), "sequences",
                  std::numeric_limits<std::int32_t>::max());
  refuse_too_many(static_cast<double>(lengths.size()) * static_cast<double>(epochs.count), "repeated sequences");
  NumpyRandom random(numpy_seed(request.seed));
  GptOrder order;
  order.sequences.resize(lengths.size() * static_cast<std::size_t>(epochs.count));
  for (std::size_t i = 0; i < order.sequences.size(); ++i)
    order.sequences[i] = static_cast<std::int32_t>(first + static_cast<std::int64_t>(i % lengths.size()));
  const std::span all(order.sequences);
  const std::size_t joint = all.size() - (epochs.last_apart ? lengths.size() : 0);
  random.shuffle(all.first(joint));
  random.shuffle(all.subspan(joint));
  order.starts = cut(order.sequences, first, lengths, epochs.samples, request.sequence_length);
  order.shuffle.resize(static_cast<std::size_t>(epochs.samples));
  std::iota(order.shuffle.begin(), order.shuffle.end(), 0u);
  const std::span samples(order.shuffle);
  const std::size_t before = epochs.last_apart ? static_cast<std::size_t>(epochs.first_apart) : samples.size();
  random.shuffle(samples.first(before));
  random.shuffle(samples.subspan(before));
  return order;
}

std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) weight /= sum;
  return weights;
}

BlendSizes blend_sizes(const std::vector<double>& shares, std::int64_t samples) {
  BlendSizes sizes;
  for (const double share : shares) {
    const double used = std::ceil(static_cast<double>(samples) * share);
    sizes.built.push_back(static_cast<std::int64_t>(std::ceil(used * (1 + kSurplus))));
    sizes.all += static_cast<std::int64_t>(used);
  }
  return sizes;
}

BlendOrder blend_order(const std::vector<double>& shares, std::int64_t size) {
  refuse_too_many(static_cast<double>(size), "samples");
  BlendOrder order;
  order.sets.resize(static_cast<std::size_t>(size));
  order.samples.resize(order.sets.size());
  std::vector<std::uint32_t> counts(shares.size());
  for (std::size_t i = 0; i < order.sets.size(); ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    std::size_t behind = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t set = 0; set < shares.size(); ++set) {
      const double missing = shares[set] * position - counts[set];
      if (missing > most) behind = set, most = missing;
    }
    order.sets[i] = static_cast<std::uint16_t>(behind);
    order.samples[i] = counts[behind]++;
  }
  return order;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

GptPaths parse_gpt_paths(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  GptPaths paths;
  std::vector<std::string> unweighted;
  for (std::size_t i = 0; words.size() % 2 == 0 && i < words.size(); i += 2) {
    const auto weight = parse_double(words[i]);
    if (!weight) {
      unweighted.push_back(words[i]);
      continue;
    }
    if (!(*weight > 0) || std::isinf(*weight))
      throw ConfigError({fmt::format("{} is not a weight of {}", words[i], in_quotes(words[i + 1])), "data.path",
                         "use a number above 0, or leave this text out"});
    paths.weights.push_back(*weight);
    paths.prefixes.push_back(words[i + 1]);
  }
  if (paths.weights.empty()) paths.prefixes = std::move(words);
  if (!paths.weights.empty() && !unweighted.empty())
    throw ConfigError(
        {fmt::format("some texts in data.path have a weight, but {} is not one", in_quotes(unweighted[0])), "data.path",
         "write WEIGHT PREFIX WEIGHT PREFIX, or only prefixes"});
  if (paths.prefixes.size() > kMostSets)
    throw ConfigError({fmt::format("data.path names {} texts", paths.prefixes.size()), "data.path",
                       fmt::format("blend at most {}", kMostSets)});
  return paths;
}

}  // namespace braid
