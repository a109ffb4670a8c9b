#include "predict/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/config.h"
#include "base/error.h"
#include "base/strings.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

constexpr double kGiga = 1e9;

// Far beyond any machine: a larger number must have a wrong unit or exponent.
constexpr double kMostMemoryGb = 1e7, kMostMicroseconds = 1e8, kMostCrowding = 1e3;
constexpr int kMostCores = 1'000'000;
constexpr double kLeastInTable = 1e-9, kMostInTable = 1e15;

// In YAML, a table of numbers is a text of several lines with one point per line.
using Numbers = std::vector<std::vector<double>>;

std::string text_of(const Numbers& rows) {
  std::string text;
  for (const std::vector<double>& row : rows) text += fmt::format("{:.5g}\n", fmt::join(row, " "));
  return text;
}

// The profile's form in YAML, which describe() visits.
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
  fields.choice("source", profile.source, {"datasheet", "measured"}, "where the numbers come from");
  fields.field("note", profile.note, "more about where they come from");
  fields.choice("links_source", profile.links_source, {"same", "measured", "datasheet"},
                "of the links, if another one");
  fields.choice("device", profile.device, {"cuda", "cpu"}, "what ranks compute on");
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

class Parser {
 public:
  explicit Parser(YamlReader& reader) : reader_(reader) {}

  HardwareProfile run(ProfileText text) {
    HardwareProfile profile = std::move(text.profile);
    if (has("memory_gb", text.memory_gb, "the memory of a GPU, or of the host, in 1e9 bytes"))
      positive("memory_gb", profile.memory_gb = *text.memory_gb, kMostMemoryGb);
    positive("ranks_per_node", profile.ranks_per_node, kMaxWorldSize);
    if (profile.device == "cpu" && has("cores", text.cores, "how many the host has"))
      positive("cores", profile.cores = *text.cores, kMostCores);
    if (profile.crowding < 1)
      complain("crowding", fmt::format("crowding must be at least 1, got {}", profile.crowding),
               "1 means that ranks compute as fast as with a core each");
    at_most("crowding", profile.crowding, kMostCrowding, "give a factor");
    microseconds("host_us", profile.host_us);
    microseconds("collective_us", profile.collective_us);
    positive("collective_cpu", profile.collective_cpu, 1,
             "give the share of a collective's time that a core is busy with it");
    profile.inside_node = link("inside_node", text.inside_node);
    profile.between_nodes = link("between_nodes", text.between_nodes);
    for (const OperatorText& op : text.operators) add_operator(op, profile);
    for (const char* needed : {profile.device == "cpu" ? "product_wide" : "product", "stream"})
      if (profile.operators[index_of(needed)].rates.empty())
        complain("operators", fmt::format("the speed of '{}' is missing; other operators are derived from it", needed),
                 fmt::format("add operators.{}.rates", needed));
    return profile;
  }

  std::vector<Problem> take() { return problems_.take(); }

 private:
  void complain(const std::string& key, std::string what, std::string fix) {
    problems_.add(std::move(what), reader_.where(key), std::move(fix));
  }
  template <class T>
  bool has(const std::string& key, const std::optional<T>& value, const char* meaning) {
    if (!value) complain(key, fmt::format("{} is missing", key), fmt::format("add {}, {}", key, meaning));
    return value.has_value();
  }
  void at_most(const std::string& key, double value, double most, const char* fix) {
    if (value > most) complain(key, fmt::format("{} must be at most {:g}, got {}", key, most, value), fix);
  }
  void positive(const std::string& key, double value, double most, const char* fix = "check the unit") {
    if (value <= 0) complain(key, fmt::format("{} must be positive, got {}", key, value), "give a positive number");
    at_most(key, value, most, fix);
  }
  void microseconds(const std::string& key, double value) {
    if (value < 0) complain(key, fmt::format("{} must not be negative, got {}", key, value), "give 0 or more");
    at_most(key, value, kMostMicroseconds, "give microseconds");
  }

  // Returns the numbers of each line, which must have a positive number for each column.
  Numbers table(const std::string& key, const std::string& text, const std::vector<std::string>& columns) {
    Numbers rows;
    for (const std::string& line : split(text, '\n')) {
      std::istringstream words(line);
      std::vector<double> row;
      bool is_valid = true;
      for (std::string word; words >> word;) {
        const std::optional<double> value = parse_double(word);
        is_valid = is_valid && value && *value > 0;
        row.push_back(value.value_or(0));
      }
      if (row.empty()) continue;
      if (!is_valid || row.size() != columns.size()) {
        complain(key,
                 fmt::format("a line should have {}, not {}", counted(std::ssize(columns), "positive number"),
                             in_quotes(line)),
                 fmt::format("write {}", fmt::join(columns, ", ")));
        return {};
      }
      if (std::ranges::min(row) < kLeastInTable || std::ranges::max(row) > kMostInTable) {
        complain(key,
                 fmt::format("numbers must be from {:g} to {:g}, not {}", kLeastInTable, kMostInTable, in_quotes(line)),
                 fmt::format("check the units of {}", fmt::join(columns, ", ")));
        return {};
      }
      rows.push_back(std::move(row));
    }
    return rows;
  }

  Link link(const std::string& key, const LinkText& text) {
    microseconds(key + ".latency_us", text.latency_us);
    Link link = {.latency_us = text.latency_us};
    for (const std::vector<double>& row : table(key + ".rates", text.rates, {"bytes", "gb_per_s"}))
      link.rates.push_back({row[0], row[1]});
    std::ranges::sort(link.rates, {}, &RatePoint::bytes);
    return link;
  }

  static std::ptrdiff_t index_of(const std::string& name) {
    return std::ranges::find(operator_names(), name) - operator_names().begin();
  }

  void add_operator(const OperatorText& text, HardwareProfile& profile) {
    const std::string key = "operators." + text.name;
    const std::ptrdiff_t index = index_of(text.name);
    if (index == kOperators)
      return complain(key, fmt::format("no operator is called {}", in_quotes(text.name)),
                      choice_advice(text.name, operator_names()));
    microseconds(key + ".latency_us", text.latency_us);
    OperatorSpeed& speed = profile.operators[index];
    speed.latency_us = text.latency_us;
    const bool by_bytes = counts_bytes(static_cast<Operator>(index));
    const std::vector<std::string> columns = by_bytes
                                                 ? std::vector<std::string>{"bytes", "giga_per_s"}
                                                 : std::vector<std::string>{"rows", "columns", "depth", "giga_per_s"};
    for (const std::vector<double>& row : table(key + ".rates", text.rates, columns)) {
      std::array<double, 3> size = {1, 1, 1};
      std::copy(row.begin(), row.end() - 1, size.begin());
      speed.rates.emplace_back(size, row.back());
    }
    if (speed.rates.empty() && problems_.empty())
      complain(key, fmt::format("{} has no rates", key), fmt::format("write a line of {}", fmt::join(columns, ", ")));
  }

  YamlReader& reader_;
  ProblemList problems_;
};

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

SpeedText text_of(const Link& link) {
  Numbers rows;
  for (const RatePoint& point : link.rates) rows.push_back({point.bytes, point.gb_per_s});
  return {.latency_us = link.latency_us, .rates = text_of(rows)};
}

SpeedText text_of(const OperatorSpeed& speed, int op) {
  Numbers rows;
  for (const OperatorRate& rate : speed.rates) {
    const int sizes = counts_bytes(static_cast<Operator>(op)) ? 1 : 3;
    rows.emplace_back(rate.size.begin(), rate.size.begin() + sizes).push_back(rate.giga_per_s);
  }
  return {operator_names()[op], speed.latency_us, text_of(rows)};
}

// The operator whose speed stands for one that was not measured.
Operator stand_in(Operator op, const std::string& device) {
  switch (op) {
    case Operator::Product:
      return device == "cpu" ? Operator::ProductWide : Operator::Product;
    case Operator::ProductFp8Sum:
    case Operator::ExpertsFp8:
    case Operator::ExpertsFp8Sum:
      return Operator::ProductFp8;
    case Operator::QuantizeRows:
    case Operator::QuantizeActivation:
    case Operator::QuantizeActivationBackward:
      return Operator::Quantize;
    case Operator::AttentionBackward:
      return Operator::Attention;
    case Operator::ScanBackward:
      return Operator::Scan;
    default:
      return counts_bytes(op) ? Operator::Stream : Operator::Product;
  }
}

}  // namespace

OperatorRate::OperatorRate(const std::array<double, 3>& size, double giga_per_s)
    : size(size), giga_per_s(giga_per_s), log2_size{std::log2(size[0]), std::log2(size[1]), std::log2(size[2])} {}

double rate_of(const Link& link, double bytes) {
  const std::vector<RatePoint>& points = link.rates;
  BRAID_CHECK(!points.empty(), "the profile has no rates of this link");
  const auto above = std::ranges::upper_bound(points, bytes, {}, &RatePoint::bytes);
  if (above == points.begin()) return points.front().gb_per_s * kGiga;
  if (above == points.end()) return points.back().gb_per_s * kGiga;
  const RatePoint &low = *(above - 1), &high = *above;
  const double share = std::log(bytes / low.bytes) / std::log(high.bytes / low.bytes);
  return (low.gb_per_s + share * (high.gb_per_s - low.gb_per_s)) * kGiga;
}

const OperatorSpeed& speed_of(const HardwareProfile& profile, Operator op) {
  const OperatorSpeed& speed = profile.operators[static_cast<int>(op)];
  if (!speed.rates.empty()) return speed;
  const Operator next = stand_in(op, profile.device);
  BRAID_CHECK(next != op, "{} has no speed of {}", profile.name, operator_names()[static_cast<int>(op)]);
  return speed_of(profile, next);
}

HardwareProfile parse_hardware(const std::string& yaml, const std::string& name) {
  YamlReader reader = YamlReader::from_text(yaml, name);
  ProfileText text;
  describe(reader, text);
  Parser parser(reader);
  HardwareProfile profile = parser.run(std::move(text));
  std::vector<Problem> problems = reader.finish();
  // A check of a value that could not be read would only report its mistake again.
  if (problems.empty()) problems = parser.take();
  if (!problems.empty()) throw ConfigError(std::move(problems));
  profile.name = std::filesystem::path(name).stem().string();
  return profile;
}

std::string to_yaml(const HardwareProfile& profile) {
  ProfileText text = {.profile = profile,
                      .memory_gb = profile.memory_gb,
                      .cores = profile.cores,
                      .inside_node = {text_of(profile.inside_node)},
                      .between_nodes = {text_of(profile.between_nodes)}};
  for (int op = 0; op < kOperators; ++op)
    if (const OperatorSpeed& speed = profile.operators[op]; !speed.rates.empty())
      text.operators.push_back({text_of(speed, op)});
  ProfileWriter writer;
  describe(writer, text);
  return writer.text();
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const StoredProfile& stored : stored_profiles()) names.emplace_back(stored.name);
  return names;
}

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

bool is_host(const HardwareProfile& profile) { return profile.device == "cpu"; }

HardwareProfile on_one_host(HardwareProfile profile, int ranks) {
  if (is_host(profile)) profile.ranks_per_node = ranks;
  return profile;
}

std::string device_word(const HardwareProfile& profile) { return is_host(profile) ? "rank" : "GPU"; }

std::string described(const HardwareProfile& profile) {
  const auto words = [](const std::string& source) {
    return source == "measured" ? "measured" : "from a datasheet, not measured";
  };
  if (profile.links_source == "same" || profile.links_source == profile.source)
    return fmt::format("{} ({})", profile.name, words(profile.source));
  return fmt::format("{} (operators {}, links {})", profile.name, words(profile.source), words(profile.links_source));
}

void check_links(const HardwareProfile& profile, int ranks) {
  const auto check = [&](const char* key, const Link& link) {
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
