#include "models/forward_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/strings.h"
#include "ckpt/load.h"
#include "dist/world.h"
#include "models/forward.h"
#include "models/hf_model.h"
#include "models/radio.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

std::string where_is(const SafetensorsReader& inputs, const std::string& name) {
  return fmt::format("{}, {}", inputs.path(), name);
}

// "0, 5, 9, ... (70 in all)": a file decides how many there are.
template <class T>
std::string first_of(const std::vector<T>& values) {
  constexpr std::size_t kShown = 20;
  const auto shown = std::span(values).first(std::min(kShown, values.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     values.size() > kShown ? fmt::format(", ... ({} in all)", values.size()) : "");
}

[[noreturn]] void refuse(const SafetensorsReader& inputs, const std::string& name, std::string what, std::string fix) {
  throw ConfigError({std::move(what), where_is(inputs, name), std::move(fix)});
}

const StoredTensor& require(const SafetensorsReader& inputs, const std::string& name) {
  if (const StoredTensor* found = inputs.find(name)) return *found;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : inputs.tensors()) names.push_back(in_quotes(tensor.name));
  throw ConfigError({fmt::format("the inputs have no tensor '{}'", name), inputs.path(),
                     names.empty() ? "the file is empty" : fmt::format("the file has {}", first_of(names))});
}

at::Tensor read_integers(const SafetensorsReader& inputs, const std::string& name) {
  const StoredTensor& stored = require(inputs, name);
  if (stored.dtype != StoredDtype::I64 && stored.dtype != StoredDtype::I32)
    refuse(inputs, name, fmt::format("{} is of dtype {}", name, name_of(stored.dtype)), "store it as int64 or int32");
  return read_tensor(stored).to(at::kLong);
}

at::Tensor read_floats(const SafetensorsReader& inputs, const std::string& name) {
  const at::Tensor tensor = read_tensor(require(inputs, name));
  if (!tensor.is_floating_point())
    refuse(inputs, name, fmt::format("{} is not of a floating-point dtype", name), "store it as float32");
  return tensor;
}

void check_range(const SafetensorsReader& inputs, const std::string& name, const at::Tensor& bad,
                 const at::Tensor& values, const std::string& fix) {
  if (!bad.any().item<bool>()) return;
  const std::int64_t first = bad.flatten().nonzero()[0].item<std::int64_t>();
  refuse(inputs, name,
         fmt::format("{} has the value {} at place {}", name, values.flatten()[first].item<std::int64_t>(), first),
         fix);
}

at::Tensor outside(const at::Tensor& values, std::int64_t vocab) { return (values < 0).logical_or(values >= vocab); }

// --- language

std::vector<std::int64_t> sequence_offsets(const SafetensorsReader& inputs, const at::Tensor& ids) {
  const std::int64_t tokens = ids.numel(), length = ids.size(-1);
  std::vector<std::int64_t> offsets;
  if (!inputs.find("cu_seqlens")) {  // every row is a sequence
    for (std::int64_t begin = 0; begin < tokens; begin += length) offsets.push_back(begin);
    offsets.push_back(tokens);
    return offsets;
  }
  const at::Tensor cu_seqlens = read_integers(inputs, "cu_seqlens");
  if (cu_seqlens.dim() != 1 || cu_seqlens.numel() < 2)
    refuse(inputs, "cu_seqlens", fmt::format("cu_seqlens has shape {}", shape_text(cu_seqlens.sizes().vec())),
           "give n + 1 borders of n sequences");
  if (tokens != length)
    refuse(inputs, "cu_seqlens", fmt::format("packed sequences in {} rows", tokens / length), "lay them into one row");
  offsets.assign(cu_seqlens.data_ptr<std::int64_t>(), cu_seqlens.data_ptr<std::int64_t>() + cu_seqlens.numel());
  if (offsets.front() != 0 || offsets.back() != tokens || !std::is_sorted(offsets.begin(), offsets.end()))
    refuse(inputs, "cu_seqlens", fmt::format("cu_seqlens [{}] are no borders of {} tokens", first_of(offsets), tokens),
           fmt::format("start at 0, never fall, end at {}", tokens));
  return offsets;
}

// From labels of the tokens themselves to labels of the next token in the same sequence.
at::Tensor shift_labels(const at::Tensor& labels, const std::vector<std::int64_t>& offsets) {
  at::Tensor next = at::full_like(labels, kIgnoredLabel);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], count = offsets[i + 1] - offsets[i] - 1;
    if (count > 0) next.narrow(0, begin, count).copy_(labels.narrow(0, begin + 1, count));
  }
  return next;
}

struct TokenInputs {
  TokenBatch batch;
  std::vector<std::int64_t> shape;  // of input_ids
};

TokenInputs read_tokens(const SafetensorsReader& inputs, const HybridLmConfig& config, bool needs_labels) {
  const at::Tensor ids = read_integers(inputs, "input_ids");
  if (ids.dim() < 1 || ids.dim() > 2 || ids.numel() == 0)
    refuse(inputs, "input_ids", fmt::format("input_ids has shape {}", shape_text(ids.sizes().vec())),
           "give [batch, sequence] or [tokens], with at least one token");
  const std::string range = fmt::format("use 0 to {}", config.vocab - 1);
  check_range(inputs, "input_ids", outside(ids, config.vocab), ids, range);
  TokenInputs result{{ids.flatten(), {}, sequence_offsets(inputs, ids)}, ids.sizes().vec()};
  if (inputs.find("labels")) {
    const at::Tensor labels = read_integers(inputs, "labels");
    if (labels.sizes() != ids.sizes())
      refuse(
          inputs, "labels",
          fmt::format("labels has shape {}, input_ids {}", shape_text(labels.sizes().vec()), shape_text(result.shape)),
          "give a label, or -100, for every token");
    check_range(inputs, "labels", outside(labels, config.vocab).logical_and(labels != kIgnoredLabel), labels,
                fmt::format("{}, or {} for no label", range, kIgnoredLabel));
    result.batch.labels = shift_labels(labels.flatten(), result.batch.offsets);
  } else if (needs_labels) {
    refuse(inputs, "labels", "--grads needs a loss, and the inputs have no 'labels'",
           "add labels, or leave out --grads");
  }
  return result;
}

// --- vision

struct ImageInputs {
  ImageBatch batch;
  std::vector<std::int64_t> shape;  // of the features
};

std::vector<ImageSize> read_sizes(const SafetensorsReader& inputs) {
  const at::Tensor sizes = read_integers(inputs, "imgs_sizes");
  if (sizes.dim() != 2 || sizes.size(1) != 2)
    refuse(inputs, "imgs_sizes", fmt::format("imgs_sizes has shape {}", shape_text(sizes.sizes().vec())),
           "give [images, 2]: height and width in pixels");
  std::vector<ImageSize> images;
  for (std::int64_t i = 0; i < sizes.size(0); ++i)
    images.push_back({sizes[i][0].item<std::int64_t>(), sizes[i][1].item<std::int64_t>()});
  return images;
}

ImageInputs read_packed_images(const SafetensorsReader& inputs, const RadioConfig& config) {
  const at::Tensor patches = read_floats(inputs, "patches");
  const std::int64_t pixels = std::int64_t{config.channels} * config.patch * config.patch;
  if (patches.dim() < 2 || patches.size(-1) != pixels)
    refuse(inputs, "patches", fmt::format("patches has shape {}", shape_text(patches.sizes().vec())),
           fmt::format("give [patches, {}]", pixels));
  ImageInputs result;
  result.batch.patches = patches.reshape({-1, pixels});
  result.batch.images = patch_grids(read_sizes(inputs), config.patch, where_is(inputs, "imgs_sizes"));
  const std::int64_t expected = total_patches(result.batch.images);
  if (expected != result.batch.patches.size(0))
    refuse(inputs, "imgs_sizes",
           fmt::format("images of these sizes have {} patches, patches has {}", expected, result.batch.patches.size(0)),
           "list every image's size in pixels, in the order of its patches");
  result.shape = patches.sizes().vec();
  result.shape.back() = config.hidden;
  return result;
}

ImageInputs read_equal_images(const SafetensorsReader& inputs, const RadioConfig& config) {
  if (!inputs.find("pixel_values"))
    throw ConfigError({"the inputs have no images", inputs.path(), "give pixel_values, or patches and imgs_sizes"});
  const at::Tensor pixels = read_floats(inputs, "pixel_values");
  if (pixels.dim() != 4 || pixels.size(1) != config.channels || pixels.size(0) == 0)
    refuse(inputs, "pixel_values", fmt::format("pixel_values has shape {}", shape_text(pixels.sizes().vec())),
           fmt::format("give [images, {}, height, width] with at least one image", config.channels));
  const std::vector<ImageSize> sizes(static_cast<std::size_t>(pixels.size(0)), {pixels.size(2), pixels.size(3)});
  ImageInputs result;
  result.batch.images = patch_grids(sizes, config.patch, where_is(inputs, "pixel_values"));
  result.batch.patches = patchify(pixels, config.patch);
  result.shape = {pixels.size(0), result.batch.images[0].patches(), config.hidden};
  return result;
}

ImageInputs read_images(const SafetensorsReader& inputs, const RadioConfig& config) {
  ImageInputs result = inputs.find("patches") ? read_packed_images(inputs, config) : read_equal_images(inputs, config);
  if (inputs.find("features_grad")) {
    const at::Tensor grads = read_floats(inputs, "features_grad");
    if (grads.sizes().vec() != result.shape)
      refuse(inputs, "features_grad", fmt::format("features_grad has shape {}", shape_text(grads.sizes().vec())),
             fmt::format("features will have {}", shape_text(result.shape)));
    result.batch.feature_grads = grads.reshape({-1, config.hidden});
  }
  return result;
}

// --- both

at::ScalarType scalar_type(const std::string& name) {
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  BRAID_CHECK_EQ(name, "float32", "dtype");
  return at::kFloat;
}

ForwardOptions options_of(const ForwardRequest& request) {
  return {.dtype = scalar_type(request.dtype),
          .grads = request.grads,
          .sequence_parallel = request.sequence_parallel,
          .recompute = request.recompute};
}

void check_outputs(const std::string& path) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder, ignored))
    throw ConfigError({fmt::format("the folder '{}' does not exist", folder.string()), "--outputs", "create it"});
  if (fs::is_directory(path, ignored))
    throw ConfigError({fmt::format("'{}' is a folder", path), "--outputs", "give the name of a file"});
}

void check_vision_layout(const ModuleConfig& layout) {
  for (const auto& [name, size] : {std::pair("cp", layout.cp), {"ep", layout.ep}, {"expt_tp", layout.expt_tp}})
    if (size != 1)
      throw ConfigError({fmt::format("radio does not run with {}={}", name, size), "layout", "use tp, pp and dp"});
}

NamedTensors outputs_of(const StoredModel& model, const ForwardResult& result, const std::string& name,
                        std::vector<std::int64_t> shape) {
  const bool is_double = result.output.scalar_type() == at::kDouble;
  NamedTensors outputs = {{name, result.output.view(shape).to(is_double ? at::kDouble : at::kFloat)}};
  if (result.loss.defined()) outputs.emplace_back("loss", result.loss.to(is_double ? at::kDouble : at::kFloat));
  const std::map<std::string, at::Tensor> grads(result.grads.begin(), result.grads.end());
  for (const ForeignTensor& tensor : all_spellings(model))
    if (const auto grad = grads.find(tensor.param); grad != grads.end())
      outputs.emplace_back("grad." + tensor.name, foreign_tensor(tensor, grad->second));
  return outputs;
}

}  // namespace

Topology check_forward(const ForwardRequest& request) {
  check_outputs(request.outputs);
  const StoredModel model = open_model(request.model);
  std::vector<Problem> problems = std::visit(
      [&](const auto& config) { return validate(config, layout_sizes(request.layout), "layout"); }, model.config);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  const auto* language = std::get_if<HybridLmConfig>(&model.config);
  const SafetensorsReader inputs(request.inputs);
  if (language) {
    read_tokens(inputs, *language, request.grads);
  } else {
    check_vision_layout(request.layout);
    read_images(inputs, std::get<RadioConfig>(model.config));
  }
  TopologyConfig topology;
  topology.modules = {request.layout};
  const bool has_experts = language && language->pattern.find('E') != std::string::npos;
  return Topology(
      topology,
      {.micro_batch = 1, .global_batch = request.layout.dp, .num_experts = has_experts ? language->experts : 0});
}

void forward_files(const ForwardRequest& request, const Topology& topology, World& world) {
  const StoredModel model = open_model(request.model);
  const SafetensorsReader inputs(request.inputs);
  const ForwardOptions options = options_of(request);
  const Fill fill = [&](Parameters& parameters) {
    for (const Parameters::Entry& entry : parameters.entries()) {
      at::Tensor local = entry.value;
      load(model, entry.spec, parameters.place(), local);
    }
  };
  NamedTensors outputs;
  if (const auto* language = std::get_if<HybridLmConfig>(&model.config)) {
    TokenInputs tokens = read_tokens(inputs, *language, request.grads);
    const ForwardResult result = forward_language(*language, fill, tokens.batch, options, topology, world);
    tokens.shape.push_back(language->vocab);
    if (world.rank() == 0) outputs = outputs_of(model, result, "logits", tokens.shape);
  } else {
    const auto& vision = std::get<RadioConfig>(model.config);
    const ImageInputs images = read_images(inputs, vision);
    const ForwardResult result = forward_vision(vision, fill, images.batch, options, topology, world);
    if (world.rank() == 0) outputs = outputs_of(model, result, "features", images.shape);
  }
  if (world.rank() == 0) write_tensors(request.outputs, outputs);
}

}  // namespace braid
