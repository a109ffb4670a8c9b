// Compares named activations of two runs, whose ranks may have written other rows of them each.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "formats/safetensors.h"
#include "report/compare.h"

namespace braid {
namespace {

// A tensor of which some ranks wrote some rows.
struct Part {
  std::int64_t first_row = 0, rows = 0;
  StoredTensor tensor;
};
using Key = std::pair<std::string, std::int64_t>;  // name and iteration

struct Activation {
  std::vector<Part> parts{};  // in the order of rows, without gaps
  std::int64_t rows = 0, width = 0;
};

struct Activations {
  std::vector<std::unique_ptr<SafetensorsReader>> files{};
  std::map<Key, Activation> all{};
};

[[noreturn]] void refuse(std::string what, const std::string& where) {
  throw ConfigError({std::move(what), where, "write the activations again (log.activation_dir)"});
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double size = exponent == 31  ? mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN()
                       : exponent == 0 ? std::ldexp(mantissa, -24)
                                      : std::ldexp(mantissa + 1024, exponent - 25);
  return bits >> 15 ? -size : size;
}

template <class Bits>
Bits bits_at(const std::byte* bytes) {
  Bits bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

double element(const StoredTensor& tensor, std::int64_t i) {
  const std::byte* bytes = tensor.data.data() + i * bytes_of(tensor.dtype);
  switch (tensor.dtype) {
    case StoredDtype::F64: return bits_at<double>(bytes);
    case StoredDtype::F32: return static_cast<double>(bits_at<float>(bytes));
    case StoredDtype::F16: return half_value(bits_at<std::uint16_t>(bytes));
    case StoredDtype::BF16: {
      const auto bits = std::uint32_t{bits_at<std::uint16_t>(bytes)} << 16;
      return static_cast<double>(std::bit_cast<float>(bits));
    }
    default: throw_check_failed(__FILE__, __LINE__, "not a tensor of floating point numbers");
  }
}

// "combined_embeddings@8192" is the part from that row on. Leading dimensions are rows, too.
void add_part(const StoredTensor& tensor, std::int64_t iteration, Activations& activations) {
  const std::size_t at = tensor.name.rfind('@');
  const auto first = at == std::string::npos ? std::optional<std::int64_t>(0) : parse_int64(tensor.name.substr(at + 1));
  if (!first || *first < 0) refuse(fmt::format("{} names no row", in_quotes(tensor.name)), tensor.file);
  if (tensor.dtype > StoredDtype::BF16)
    refuse(fmt::format("{} has no floating point numbers", in_quotes(tensor.name)), tensor.file);
  const std::int64_t width = tensor.shape.empty() ? 1 : tensor.shape.back();
  const std::int64_t elements = std::ssize(tensor.data) / bytes_of(tensor.dtype);
  Activation& activation = activations.all[{tensor.name.substr(0, at), iteration}];
  if (!activation.parts.empty() && width != activation.width)
    refuse(fmt::format("parts of {} differ in width: {} and {}", in_quotes(tensor.name), activation.width, width),
           tensor.file);
  activation.width = width;
  activation.parts.push_back({*first, width > 0 ? elements / width : 0, tensor});
}

// "iter_0000012.rank00003.safetensors"; 1 for other names.
std::int64_t iteration_of_file(const std::string& name) {
  if (!name.starts_with("iter_")) return 1;
  return parse_int64(name.substr(5, name.find('.') - 5)).value_or(1);
}

Activations read_activations(const std::string& path) {
  std::set<std::string> paths;
  if (is_file(path)) paths.insert(path);
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors") paths.insert(entry->path().string());
  if (paths.empty())
    throw ConfigError({fmt::format("{} has no activations (*.safetensors)", in_quotes(path)), "command line",
                       "give a folder that log.activation_dir named, or a safetensors file"});
  Activations activations;
  for (const std::string& file : paths) {
    const auto& reader = activations.files.emplace_back(std::make_unique<SafetensorsReader>(file));
    for (const StoredTensor& tensor : reader->tensors())
      add_part(tensor, iteration_of_file(fs::path(file).filename().string()), activations);
  }
  for (auto& [key, activation] : activations.all) {
    std::erase_if(activation.parts, [](const Part& part) { return part.rows == 0; });
    std::ranges::sort(activation.parts, {}, &Part::first_row);
    for (const Part& part : activation.parts) {
      if (part.first_row != activation.rows)
        refuse(fmt::format("'{}' of iteration {} has rows {} before row {}", key.first, key.second,
                           part.first_row > activation.rows ? "missing" : "twice",
                           std::max(part.first_row, activation.rows)),
               part.tensor.file);
      activation.rows += part.rows;
    }
  }
  return activations;
}

// Walks through the elements of both, whose parts may have other lengths.
ComparedActivation compare(const Key& key, const Activation& a, const Activation& b, const Tolerance& tolerance) {
  if (a.rows != b.rows || a.width != b.width)
    throw ConfigError({fmt::format("'{}' of iteration {} is [{}, {}] in A and [{}, {}] in B", key.first, key.second,
                                   a.rows, a.width, b.rows, b.width),
                       "command line", "compare steps of the same samples"});
  ComparedActivation result{.name = key.first, .iteration = key.second, .rows = a.rows, .width = a.width};
  double ab = 0, aa = 0, bb = 0, differences = 0;
  auto part_a = a.parts.begin(), part_b = b.parts.begin();
  for (std::int64_t i = 0; i < a.rows * a.width; ++i) {
    while (i >= (part_a->first_row + part_a->rows) * a.width) ++part_a;
    while (i >= (part_b->first_row + part_b->rows) * b.width) ++part_b;
    const double x = element(part_a->tensor, i - part_a->first_row * a.width),
                 y = element(part_b->tensor, i - part_b->first_row * b.width);
    result.not_finite_a += !std::isfinite(x);
    result.not_finite_b += !std::isfinite(y);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      result.is_equal = result.is_equal && (x == y || (std::isnan(x) && std::isnan(y)));
      continue;
    }
    ab += x * y;
    aa += x * x;
    bb += y * y;
    differences += (x - y) * (x - y);
    result.absmax_a = std::max(result.absmax_a, std::abs(x));
    result.absmax_b = std::max(result.absmax_b, std::abs(y));
    result.max_absolute = std::max(result.max_absolute, std::abs(x - y));
  }
  result.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa) / std::sqrt(bb) : aa == bb ? 1 : 0;
  result.relative = differences == 0 ? 0 : std::sqrt(differences / aa);
  const double allowed = tolerance.absolute + tolerance.relative * std::max(result.absmax_a, result.absmax_b);
  result.is_equal = result.is_equal && result.max_absolute <= allowed;
  return result;
}

std::string name_of(const Key& key) { return fmt::format("{} of iteration {}", key.first, key.second); }

}  // namespace

ActivationComparison compare_activations(const std::string& path_a, const std::string& path_b,
                                         const Tolerance& tolerance) {
  const Activations a = read_activations(path_a), b = read_activations(path_b);
  ActivationComparison result;
  for (const auto& [key, activation] : a.all)
    if (const auto found = b.all.find(key); found != b.all.end())
      result.activations.push_back(compare(key, activation, found->second, tolerance));
    else
      result.only_in_a.push_back(name_of(key));
  for (const auto& [key, activation] : b.all)
    if (!a.all.contains(key)) result.only_in_b.push_back(name_of(key));
  if (result.activations.empty())
    throw ConfigError({fmt::format("no activation of the same name and iteration is in both; A has {}, B has {}",
                                   joined(result.only_in_a, ", "), joined(result.only_in_b, ", ")),
                       "command line", "compare the same iterations"});
  for (const ComparedActivation& activation : result.activations)
    result.is_equal = result.is_equal && activation.is_equal;
  return result;
}

nlohmann::ordered_json comparison_json(const ActivationComparison& comparison) {
  using Json = nlohmann::ordered_json;
  const auto json = [](const ComparedActivation& each) -> Json {
    return {{"name", each.name},
            {"iteration", each.iteration},
            {"rows", each.rows},
            {"width", each.width},
            {"equal", each.is_equal},
            {"cosine", each.cosine},
            {"absmax_a", each.absmax_a},
            {"absmax_b", each.absmax_b},
            {"max_absolute", each.max_absolute},
            {"relative", each.relative},
            {"not_finite_a", each.not_finite_a},
            {"not_finite_b", each.not_finite_b}};
  };
  return {{"equal", comparison.is_equal},
          {"activations", vector_of<Json>(comparison.activations, json)},
          {"only_in_a", comparison.only_in_a},
          {"only_in_b", comparison.only_in_b}};
}

std::string comparison_text(const ActivationComparison& comparison) {
  Rows rows;
  std::vector<std::string> different;
  for (const ComparedActivation& each : comparison.activations) {
    rows.push_back({each.name, std::to_string(each.iteration), fmt::format("[{}, {}]", each.rows, each.width),
                    fmt::format("{:.9f}", each.cosine), fmt::format("{:.5g}", each.absmax_a),
                    fmt::format("{:.5g}", each.absmax_b), fmt::format("{:.2g}", each.max_absolute),
                    fmt::format("{:.2g}", each.relative)});
    if (!each.is_equal) different.push_back(fmt::format("{} of iteration {}", each.name, each.iteration));
  }
  std::string text = format_table(
      {"activation", "iteration", "shape", "cosine", "absmax A", "absmax B", "largest difference", "relative"}, rows);
  for (const ComparedActivation& each : comparison.activations)
    if (each.not_finite_a + each.not_finite_b > 0)
      text += fmt::format("{}: {} elements of A and {} of B are not finite, and left out\n", each.name,
                          each.not_finite_a, each.not_finite_b);
  if (!comparison.only_in_a.empty()) text += fmt::format("only in A: {}\n", joined(comparison.only_in_a, ", "));
  if (!comparison.only_in_b.empty()) text += fmt::format("only in B: {}\n", joined(comparison.only_in_b, ", "));
  return text +
         (different.empty() ? "\nno activation differs\n" : fmt::format("\ndiffer: {}\n", joined(different, ", ")));
}

}  // namespace braid
