// Compares sample traces: the rule is that of Megatron's fork for a run and its resumed rest.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "report/compare.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr const char* kFields[] = {"input_ids", "labels", "loss_mask", "image_size", "images", "packing"};
constexpr std::size_t kFieldCount = std::size(kFields);

using Signature = std::array<std::uint64_t, kFieldCount>;
struct Record {
  std::vector<std::int64_t> lanes{};
  std::string role{};
  std::vector<Signature> signatures{};
};
struct TraceFile {
  std::string path{};
  std::map<std::int64_t, Record> records{};  // by step
};
struct Traces {
  std::map<std::string, TraceFile> files{};  // by name
  std::int64_t cut_lines = 0;
};

// Nothing if the line is no record.
std::optional<std::pair<std::int64_t, Record>> record_of(const std::string& line) {
  try {
    const json value = json::parse(line);
    const auto step = value.at("step").get<std::int64_t>();
    Record record{value.at("llm_lanes"), value.at("role"), value.at("signatures")};
    for (const json& signature : value.at("signatures"))
      if (signature.size() != kFieldCount) return std::nullopt;
    return step < 0 ? std::nullopt : std::optional(std::pair(step, std::move(record)));
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

void read_file(TraceFile& file, Traces& traces) {
  std::ifstream stream(file.path, std::ios::binary);
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    const auto record = record_of(line);
    if (!record && stream.eof()) {  // a kill cut it
      ++traces.cut_lines;
    } else if (!record) {
      throw ConfigError({fmt::format("line {} is no record of a sample trace", number), file.path, ""});
    } else if (!file.records.insert(*record).second) {
      throw ConfigError({fmt::format("step {} occurs twice", record->first), file.path,
                         "give each start of a run a folder of its own (log.sample_trace_dir)"});
    }
  }
  if (stream.bad()) throw DataError(fmt::format("cannot read {}", in_quotes(file.path)));
}

// "train_dataloader_llm_lane003" for "train_dataloader_llm_lane003.rank00012.jsonl".
std::string without_rank(const std::string& name) { return name.substr(0, name.rfind(".rank")); }

Traces read_traces(const std::string& folder) {
  if (!is_folder(folder))
    throw ConfigError({fmt::format("{} is not a folder", in_quotes(folder)), "command line",
                       "give a folder that log.sample_trace_dir or --energon-sample-trace-dir named"});
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename().string();
        name.ends_with(".jsonl") && name.find(".rank") != std::string::npos)
      names.push_back(name);
  if (names.empty())
    throw ConfigError({fmt::format("{} has no sample trace (*.rank*.jsonl)", in_quotes(folder)), "command line",
                       "give a folder that log.sample_trace_dir or --energon-sample-trace-dir named"});
  Traces traces;
  for (const std::string& name : names) {
    const bool is_only = std::ranges::count_if(names, [&](const std::string& other) {
                           return without_rank(other) == without_rank(name);
                         }) == 1;
    TraceFile& file = traces.files[is_only ? without_rank(name) : name];
    file.path = (fs::path(folder) / name).string();
    read_file(file, traces);
  }
  return traces;
}

using FieldsByRole = std::map<std::string, std::array<bool, kFieldCount>>;

// The fields that any record of a role has.
FieldsByRole fields_in(const Traces& traces) {
  FieldsByRole fields;
  for (const auto& [name, file] : traces.files)
    for (const auto& [step, record] : file.records) {
      auto& of_role = fields[record.role];
      for (const Signature& signature : record.signatures)
        for (std::size_t i = 0; i < kFieldCount; ++i) of_role[i] |= signature[i] != 0;
    }
  return fields;
}

// Names of what differs between two records, as far as `compared` fields go.
std::vector<std::string> differing(const Record& a, const Record& b, const std::array<bool, kFieldCount>& compared) {
  if (a.role != b.role) return {"role"};
  if (a.lanes != b.lanes || a.signatures.size() != b.signatures.size()) return {"llm_lanes"};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kFieldCount; ++i)
    if (compared[i] && !std::ranges::equal(
                           a.signatures, b.signatures, {}, [i](const Signature& s) { return s[i]; },
                           [i](const Signature& s) { return s[i]; }))
      names.emplace_back(kFields[i]);
  return names;
}

void compare_files(const std::string& name, const TraceFile& a, const TraceFile& b, const FieldsByRole& compared,
                   TraceComparison& result) {
  ++result.files;
  const std::int64_t last = a.records.empty() ? -1 : a.records.rbegin()->first;
  bool is_first = true;
  for (const auto& [step, record] : b.records) {
    if (step > last) {
      ++result.steps_only_in_b;
      continue;
    }
    const auto found = a.records.find(step);
    ++result.compared;
    const auto fields = found == a.records.end() ? std::vector<std::string>{"no such step in A"}
                                                 : differing(found->second, record, compared.at(record.role));
    if (fields.empty()) continue;
    ++result.different;
    if (std::exchange(is_first, false)) result.first_different.push_back({name, step, fields});
  }
  for (const auto& [step, record] : a.records) result.steps_only_in_a += !b.records.contains(step);
}

}  // namespace

TraceComparison compare_traces(const std::string& path_a, const std::string& path_b,
                               const std::vector<std::string>& only) {
  const std::vector<std::string> known(std::begin(kFields), std::end(kFields));
  for (const std::string& name : only)
    if (!contains(known, name))
      throw ConfigError(
          {fmt::format("{} is not a field of sample traces", in_quotes(name)), "--only", choice_advice(name, known)});
  const Traces a = read_traces(path_a), b = read_traces(path_b);
  const FieldsByRole fields_a = fields_in(a), fields_b = fields_in(b);
  TraceComparison result{.cut_lines = a.cut_lines + b.cut_lines};
  FieldsByRole compared = fields_b;
  for (auto& [role, fields] : compared)
    for (std::size_t i = 0; i < kFieldCount; ++i) {
      const bool in_a = fields_a.contains(role) && fields_a.at(role)[i];
      const bool is_wanted = only.empty() || contains(only, kFields[i]);
      if (is_wanted && in_a != fields[i])
        result.absent_fields.push_back(fmt::format("{} of {} ({} has none)", kFields[i], role, in_a ? "B" : "A"));
      fields[i] = is_wanted && in_a && fields[i];
    }
  for (const auto& [name, file] : b.files)
    if (const auto found = a.files.find(name); found != a.files.end())
      compare_files(name, found->second, file, compared, result);
    else
      result.only_in_b.push_back(name);
  for (const auto& [name, file] : a.files)
    if (!b.files.contains(name)) result.only_in_a.push_back(name);
  if (result.compared == 0)
    throw ConfigError({"the traces have no step of the same reader in common", "command line",
                       "compare runs with the same number of language replicas; only in A: " +
                           (result.only_in_a.empty() ? "nothing" : joined(result.only_in_a, ", ")) +
                           "; only in B: " + (result.only_in_b.empty() ? "nothing" : joined(result.only_in_b, ", "))});
  return result;
}

nlohmann::ordered_json comparison_json(const TraceComparison& comparison) {
  using Json = nlohmann::ordered_json;
  const auto difference_json = [](const TraceComparison::Difference& difference) -> Json {
    return {{"file", difference.file}, {"step", difference.step}, {"fields", difference.fields}};
  };
  return {{"equal", comparison.is_equal()},
          {"files", comparison.files},
          {"compared", comparison.compared},
          {"different", comparison.different},
          {"first_different", vector_of<Json>(comparison.first_different, difference_json)},
          {"only_in_a", comparison.only_in_a},
          {"only_in_b", comparison.only_in_b},
          {"steps_only_in_a", comparison.steps_only_in_a},
          {"steps_only_in_b", comparison.steps_only_in_b},
          {"absent_fields", comparison.absent_fields},
          {"cut_lines", comparison.cut_lines}};
}

std::string comparison_text(const TraceComparison& comparison) {
  std::string text = fmt::format("{} of {} compared, {} differ\n", counted(comparison.compared, "record"),
                                 counted(comparison.files, "file"), comparison.different);
  for (const auto& [file, step, fields] : comparison.first_different)
    text += fmt::format("{} differs first at step {}: {}\n", file, step, joined(fields, ", "));
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) text += fmt::format("{}: {}\n", what, joined(names, ", "));
  };
  list("files only in A", comparison.only_in_a);
  list("files only in B, which A must have", comparison.only_in_b);
  list("not compared", comparison.absent_fields);
  if (comparison.steps_only_in_a > 0)
    text += fmt::format("{} only in A\n", counted(comparison.steps_only_in_a, "step"));
  if (comparison.steps_only_in_b > 0)
    text += fmt::format("{} of B after the last one of A\n", counted(comparison.steps_only_in_b, "step"));
  if (comparison.cut_lines > 0)
    text += fmt::format("{} cut off, not read\n", counted(comparison.cut_lines, "last line"));
  return text;
}

}  // namespace braid
