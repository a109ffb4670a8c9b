#include "predict/hardware.h"

namespace braid {
namespace {

constexpr double kGiga = 1e9;

// Far beyond any machine: a larger number must have a wrong unit or exponent.
constexpr double kMostMemoryGb = 1e7, kMostMicroseconds = 1e8, kMostCrowding = 1e3;
constexpr int kMostCores = 1'000'000;
constexpr double kLeastInTable = 1e-9, kMostInTable = 1e15;

// The profile's form in YAML, which describe() visits. A table of numbers is a text with one point per line.
struct SpeedText {
  std::string name{};  // of an operator
  double latency_us = 0;
  std::string rates{};
};
struct LinkText : SpeedText {};
struct OperatorText : SpeedText {};

struct ProfileText {
  HardwareProfile profile{};
  std::optional<double> memory_gb{};
  std::optional<int> cores{};
  LinkText inside_node{}, between_nodes{};
  std::vector<OperatorText> operators{};
};

void describe(Fields& fields, LinkText& link) {
  fields.field("latency_us", link.latency_us, "of an empty message");
  fields.field("rates", link.rates, "lines of: bytes of a message, 1e9 bytes per second");
}

void describe(Fields& fields, OperatorText& op) {
  fields.field("latency_us", op.latency_us, "of a call without any work");
  fields.field("rates", op.rates, "lines of: the call's sizes, 1e9 operations or bytes per second");
}

void describe(Fields& fields, ProfileText& text) {
  HardwareProfile& profile = text.profile;
  fields.choice("source", profile.source, {Source::Datasheet, Source::Measured}, "where the numbers come from");
  fields.field("note", profile.note, "more about where they come from");
  fields.choice("links_source", profile.links_source, "of the links, if another one");
  fields.choice("device", profile.device, {DeviceChoice::Cuda, DeviceChoice::Cpu}, "what ranks compute on");
  fields.field("memory_gb", text.memory_gb, "of a GPU, or of the host; 1e9 bytes");
  fields.field("ranks_per_node", profile.ranks_per_node, "GPUs that inside_node links");
  fields.field("cores", text.cores, "of a host whose ranks compute on its CPU");
  fields.field("crowding", profile.crowding, "factor of the CPU time of ranks if there are more of them than cores");
  fields.field("host_us", profile.host_us, "to start a kernel; on a CPU: that an operator takes longer in a model");
  fields.field("collective_us", profile.collective_us, "that a call of a collective takes besides its messages");
  fields.field("collective_cpu", profile.collective_cpu,
               "the share of a collective's time that a core is busy with it");
  fields.section("inside_node", text.inside_node);
  fields.section("between_nodes", text.between_nodes);
  fields.named("operators", text.operators);
}

struct Complaints {
  const YamlReader& reader;
  ProblemList list{};

  void add(const std::string& key, std::string what, std::string fix) {
    list.add(std::move(what), reader.where(key), std::move(fix));
  }
};

// What a number must be at least, and in words.
struct Least {
  double value;
  const char* words;
  const char* fix;
};
constexpr double kAboveZero = std::numeric_limits<double>::denorm_min();
constexpr Least kPositive = {kAboveZero, "be positive", "give a positive number"};
constexpr Least kNotNegative = {0, "not be negative", "give 0 or more"};
constexpr Least kOneOrMore = {1, "be at least 1", "1 means that ranks compute as fast as with a core each"};

void check(Complaints& problems, const std::string& key, double value, const Least& least, double most,
           const char* fix) {
  if (value < least.value) problems.add(key, fmt::format("{} must {}, got {}", key, least.words, value), least.fix);
  if (value > most) problems.add(key, fmt::format("{} must be at most {:g}, got {}", key, most, value), fix);
}

void check_numbers(Complaints& problems, const ProfileText& text) {
  const HardwareProfile& profile = text.profile;
  const auto needs = [&](const char* key, bool is_there, const char* meaning) {
    if (!is_there) problems.add(key, fmt::format("{} is missing", key), fmt::format("add {}, {}", key, meaning));
    return is_there;
  };
  if (needs("memory_gb", text.memory_gb.has_value(), "the memory of a GPU, or of the host, in 1e9 bytes"))
    check(problems, "memory_gb", *text.memory_gb, kPositive, kMostMemoryGb, "check the unit");
  check(problems, "ranks_per_node", profile.ranks_per_node, kPositive, kMaxWorldSize, "check the unit");
  if (profile.device == DeviceChoice::Cpu && needs("cores", text.cores.has_value(), "how many the host has"))
    check(problems, "cores", *text.cores, kPositive, kMostCores, "check the unit");
  check(problems, "crowding", profile.crowding, kOneOrMore, kMostCrowding, "give a factor");
  check(problems, "host_us", profile.host_us, kNotNegative, kMostMicroseconds, "give microseconds");
  check(problems, "collective_us", profile.collective_us, kNotNegative, kMostMicroseconds, "give microseconds");
  check(problems, "collective_cpu", profile.collective_cpu, kPositive, 1,
        "give the share of a collective's time that a core is busy with it");
}

// Each line of rates must have a positive number for each column: sizes, then the rate.
Speed speed_from(Complaints& problems, const std::string& section, const SpeedText& text,
                 const std::vector<std::string>& columns) {
  const std::string key = section + ".rates";
  check(problems, section + ".latency_us", text.latency_us, kNotNegative, kMostMicroseconds, "give microseconds");
  Speed speed = {.latency_us = text.latency_us};
  for (const std::string& line : split(text.rates, '\n')) {
    std::istringstream words(line);
    std::vector<double> row;
    for (std::string word; words >> word;) row.push_back(parse_double(word).value_or(0));
    if (row.empty()) continue;
    if (row.size() != columns.size() || !std::ranges::all_of(row, [](double value) { return value > 0; })) {
      problems.add(key,
                   fmt::format("a line should have {}, not {}", counted(std::ssize(columns), "positive number"),
                               in_quotes(line)),
                   "write " + joined(columns, ", "));
      return {};
    }
    if (std::ranges::min(row) < kLeastInTable || std::ranges::max(row) > kMostInTable) {
      problems.add(
          key, fmt::format("numbers must be from {:g} to {:g}, not {}", kLeastInTable, kMostInTable, in_quotes(line)),
          "check the units of " + joined(columns, ", "));
      return {};
    }
    std::array<double, 3> size = {1, 1, 1};
    std::copy(row.begin(), row.end() - 1, size.begin());
    speed.rates.emplace_back(size, row.back());
  }
  return speed;
}

Speed link_from(Complaints& problems, const std::string& key, const SpeedText& text) {
  Speed link = speed_from(problems, key, text, {"bytes", "gb_per_s"});
  std::ranges::sort(link.rates, {}, &Rate::size);
  return link;
}

void add_operator(Complaints& problems, const OperatorText& text, HardwareProfile& profile) {
  const std::string key = "operators." + text.name;
  const auto index = std::ranges::find(operator_names(), text.name) - operator_names().begin();
  if (index == kOperators)
    return problems.add(key, fmt::format("no operator is called {}", in_quotes(text.name)),
                        choice_advice(text.name, operator_names()));
  std::vector<std::string> columns = {"rows", "columns", "depth", "giga_per_s"};
  if (counts_bytes(static_cast<Operator>(index))) columns = {"bytes", "giga_per_s"};
  profile.operators[index] = speed_from(problems, key, text, columns);
  if (profile.operators[index].rates.empty() && problems.list.empty())
    problems.add(key, fmt::format("{} has no rates", key), "write a line of " + joined(columns, ", "));
}

// Writes a text of several lines as a block, which people can read and edit.
class ProfileWriter : public YamlWriter {
 protected:
  void scalar(const char* key, Scalar value, const char* help) override {
    const auto text = std::get_if<std::string*>(&value);
    if (!text || (*text)->find('\n') == std::string::npos) return YamlWriter::scalar(key, value, help);
    std::string block = "|";
    for (const std::string& row : split(**text, '\n'))
      if (!row.empty()) block += "\n      " + row;
    line(key, block, "");
  }
};

// `sizes`: how many of a rate's sizes are written.
SpeedText text_of(const Speed& speed, int sizes, std::string name = "") {
  std::string rates;
  for (const Rate& rate : speed.rates) {
    std::vector<double> row(rate.size.begin(), rate.size.begin() + sizes);
    row.push_back(rate.giga_per_s);
    rates += fmt::format("{:.5g}\n", fmt::join(row, " "));
  }
  return {std::move(name), speed.latency_us, std::move(rates)};
}

// The operator whose speed stands for one that was not measured.
Operator stand_in(Operator op, DeviceChoice device) {
  static const std::map<Operator, Operator> similar = {
      {Operator::ProductFp8Sum, Operator::ProductFp8},    {Operator::ExpertsFp8, Operator::ProductFp8},
      {Operator::ExpertsFp8Sum, Operator::ProductFp8},    {Operator::QuantizeRows, Operator::Quantize},
      {Operator::QuantizeActivation, Operator::Quantize}, {Operator::QuantizeActivationBackward, Operator::Quantize},
      {Operator::AttentionBackward, Operator::Attention}, {Operator::ScanBackward, Operator::Scan}};
  if (const auto found = similar.find(op); found != similar.end()) return found->second;
  if (op == Operator::Product && device == DeviceChoice::Cpu) return Operator::ProductWide;
  return counts_bytes(op) ? Operator::Stream : Operator::Product;
}

}  // namespace

Rate::Rate(const std::array<double, 3>& size, double giga_per_s)
    : size(size), giga_per_s(giga_per_s), log2_size{std::log2(size[0]), std::log2(size[1]), std::log2(size[2])} {}

double rate_of(const Speed& link, double bytes) {
  const std::vector<Rate>& points = link.rates;
  BRAID_CHECK(!points.empty(), "the profile has no rates of this link");
  const auto bytes_of = [](const Rate& rate) { return rate.size[0]; };
  const auto above = std::ranges::upper_bound(points, bytes, {}, bytes_of);
  if (above == points.begin()) return points.front().giga_per_s * kGiga;
  if (above == points.end()) return points.back().giga_per_s * kGiga;
  const Rate &low = *(above - 1), &high = *above;
  const double share = std::log(bytes / bytes_of(low)) / std::log(bytes_of(high) / bytes_of(low));
  return (low.giga_per_s + share * (high.giga_per_s - low.giga_per_s)) * kGiga;
}

const Speed& speed_of(const HardwareProfile& profile, Operator op) {
  const Speed& speed = profile.operators[static_cast<int>(op)];
  if (!speed.rates.empty()) return speed;
  const Operator next = stand_in(op, profile.device);
  BRAID_CHECK(next != op, "{} has no speed of {}", profile.name, operator_names()[static_cast<int>(op)]);
  return speed_of(profile, next);
}

HardwareProfile parse_hardware(const std::string& yaml, const std::string& name) {
  YamlReader reader = YamlReader::from_text(yaml, name);
  ProfileText text;
  describe(reader, text);
  Complaints complaints = {reader};
  check_numbers(complaints, text);
  HardwareProfile profile = std::move(text.profile);
  profile.memory_gb = text.memory_gb.value_or(0);
  profile.cores = profile.device == DeviceChoice::Cpu ? text.cores.value_or(0) : 0;
  profile.inside_node = link_from(complaints, "inside_node", text.inside_node);
  profile.between_nodes = link_from(complaints, "between_nodes", text.between_nodes);
  for (const OperatorText& op : text.operators) add_operator(complaints, op, profile);
  for (const Operator needed :
       {profile.device == DeviceChoice::Cpu ? Operator::ProductWide : Operator::Product, Operator::Stream}) {
    const std::string& missing = operator_names()[static_cast<int>(needed)];
    if (profile.operators[static_cast<int>(needed)].rates.empty())
      complaints.add("operators",
                     fmt::format("the speed of '{}' is missing; other operators are derived from it", missing),
                     fmt::format("add operators.{}.rates", missing));
  }
  std::vector<Problem> problems = reader.finish();
  // A check of a value that could not be read would only report its mistake again.
  if (problems.empty()) problems = complaints.list.take();
  if (!problems.empty()) throw ConfigError(std::move(problems));
  profile.name = std::filesystem::path(name).stem().string();
  return profile;
}

std::string to_yaml(const HardwareProfile& profile) {
  ProfileText text = {.profile = profile,
                      .memory_gb = profile.memory_gb,
                      .cores = profile.cores,
                      .inside_node = {text_of(profile.inside_node, 1)},
                      .between_nodes = {text_of(profile.between_nodes, 1)}};
  for (int op = 0; op < kOperators; ++op)
    if (const Speed& speed = profile.operators[op]; !speed.rates.empty())
      text.operators.push_back({text_of(speed, counts_bytes(static_cast<Operator>(op)) ? 1 : 3, operator_names()[op])});
  ProfileWriter writer;
  describe(writer, text);
  return writer.text();
}

std::vector<std::string> hardware_names() { return vector_of<std::string>(stored_profiles(), &StoredProfile::name); }

HardwareProfile load_hardware(const std::string& name_or_path) {
  for (const StoredProfile& stored : stored_profiles())
    if (name_or_path == stored.name) return parse_hardware(std::string(stored.yaml), std::string(stored.name));
  const bool is_path =
      name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".yaml") || name_or_path.ends_with(".yml");
  if (is_path)
    return parse_hardware(read_config(name_or_path, "give the path of a profile, as braid plan calibrate writes it"),
                          name_or_path);
  throw ConfigError({fmt::format("no hardware profile is called {}", in_quotes(name_or_path)), "--hardware",
                     choice_advice(name_or_path, hardware_names()) + ", or give the path of a .yaml file"});
}

HardwareProfile on_one_host(HardwareProfile profile, int ranks) {
  if (is_host(profile)) profile.ranks_per_node = ranks;
  return profile;
}

std::string described(const HardwareProfile& profile) {
  const auto words = [](Source source) {
    return source == Source::Measured ? "measured" : "from a datasheet, not measured";
  };
  if (profile.links_source == Source::Same || profile.links_source == profile.source)
    return fmt::format("{} ({})", profile.name, words(profile.source));
  return fmt::format("{} (operators {}, links {})", profile.name, words(profile.source), words(profile.links_source));
}

void check_links(const HardwareProfile& profile, int ranks) {
  const auto check = [&](const char* key, const Speed& link) {
    if (link.rates.empty())
      throw ConfigError({fmt::format("the hardware profile '{}' has no rates of {}, over which {} ranks communicate",
                                     profile.name, key, ranks),
                         fmt::format("{}.rates", key),
                         "add rows of message bytes and GB/s, measured with nccl-tests or from a datasheet"});
  };
  if (ranks > 1) check("inside_node", profile.inside_node);
  if (ranks > profile.ranks_per_node) check("between_nodes", profile.between_nodes);
}

}  // namespace braid
