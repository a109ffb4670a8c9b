#include "forward/forward_files.h"
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/tensor_io.h"
#include "comm/world.h"
#include "forward/forward.h"
#include "hf/model.h"
#include "models/encoder.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

std::string where_is(const SafetensorsReader& inputs, const std::string& name) {
  return fmt::format("{}, {}", inputs.path(), name);
}

// "0, 5, 9, ... (70 in all)": shortened, since a file may have any number of values.
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

[[noreturn]] void refuse_shape(const SafetensorsReader& inputs, const std::string& name, const at::Tensor& tensor,
                               std::string fix) {
  refuse(inputs, name, fmt::format("{} has shape {}", name, shape_text(tensor.sizes().vec())), std::move(fix));
}

const StoredTensor& require(const SafetensorsReader& inputs, const std::string& name) {
  if (const StoredTensor* found = inputs.find(name)) return *found;
  const auto names = vector_of<std::string>(inputs.tensors(), [](auto& tensor) { return in_quotes(tensor.name); });
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
         fmt::format("{} has the value {} at index {}", name, values.flatten()[first].item<std::int64_t>(), first),
         fix);
}

at::Tensor outside(const at::Tensor& values, std::int64_t vocab) { return (values < 0).logical_or(values >= vocab); }

// Unknown tensors are refused, not ignored: a mask without effect would look like a wrong result.
void check_names(const SafetensorsReader& inputs, const std::set<std::string>& known) {
  std::vector<std::string> unknown;
  for (const StoredTensor& tensor : inputs.tensors())
    if (!known.count(tensor.name)) unknown.push_back(in_quotes(tensor.name));
  if (unknown.empty()) return;
  throw ConfigError({fmt::format("the inputs have unknown tensors: {}", first_of(unknown)), inputs.path(),
                     fmt::format("remove them; the known tensors are {}", fmt::join(known, ", "))});
}

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
    refuse_shape(inputs, "cu_seqlens", cu_seqlens, "give n + 1 offsets for n sequences");
  if (tokens != length)
    refuse(inputs, "cu_seqlens", fmt::format("packed sequences in {} rows", tokens / length), "pack them into one row");
  offsets.assign(cu_seqlens.data_ptr<std::int64_t>(), cu_seqlens.data_ptr<std::int64_t>() + cu_seqlens.numel());
  if (offsets.front() != 0 || offsets.back() != tokens || !std::is_sorted(offsets.begin(), offsets.end()))
    refuse(inputs, "cu_seqlens",
           fmt::format("cu_seqlens [{}] do not match {}", first_of(offsets), counted(tokens, "token")),
           fmt::format("start at 0, never decrease, end at {}", tokens));
  return offsets;
}

// Turns labels of the tokens themselves into labels of the next token in the same sequence.
at::Tensor shift_labels(const at::Tensor& labels, const std::vector<std::int64_t>& offsets) {
  at::Tensor next = at::full_like(labels, kIgnoredLabel);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], count = offsets[i + 1] - offsets[i] - 1;
    if (count > 0) next.narrow(0, begin, count).copy_(labels.narrow(0, begin + 1, count));
  }
  return next;
}

template <class Batch>
struct Inputs {
  Batch batch;
  std::vector<std::int64_t> shape;  // of input_ids, or of the features
};
using TokenInputs = Inputs<TokenBatch>;
using ImageInputs = Inputs<ItemBatch>;

TokenInputs read_tokens(const SafetensorsReader& inputs, const HybridLmConfig& config, bool needs_labels) {
  check_names(inputs, {"cu_seqlens", "input_ids", "labels"});
  const at::Tensor ids = read_integers(inputs, "input_ids");
  if (ids.dim() < 1 || ids.dim() > 2 || ids.numel() == 0)
    refuse_shape(inputs, "input_ids", ids, "give [batch, sequence] or [tokens], with at least one token");
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
    refuse(inputs, "labels", "--grads needs a loss, but the inputs have no 'labels'",
           "add labels, or leave out --grads");
  }
  return result;
}

// --- vision

std::vector<ImageSize> read_sizes(const SafetensorsReader& inputs) {
  const at::Tensor sizes = read_integers(inputs, "imgs_sizes");
  if (sizes.dim() != 2 || sizes.size(1) != 2)
    refuse_shape(inputs, "imgs_sizes", sizes, "give [images, 2]: height and width in pixels");
  std::vector<ImageSize> images;
  for (std::int64_t i = 0; i < sizes.size(0); ++i)
    images.push_back({sizes[i][0].item<std::int64_t>(), sizes[i][1].item<std::int64_t>()});
  return images;
}

ImageInputs read_packed_images(const SafetensorsReader& inputs, const RadioConfig& config) {
  const at::Tensor patches = read_floats(inputs, "patches");
  const std::int64_t pixels = std::int64_t{config.channels} * config.patch * config.patch;
  if (patches.dim() < 2 || patches.size(-1) != pixels)
    refuse_shape(inputs, "patches", patches, fmt::format("give [patches, {}]", pixels));
  ImageInputs result;
  result.batch.values = patches.reshape({-1, pixels});
  const std::vector<PatchGrid> images = patch_grids(read_sizes(inputs), config.patch, where_is(inputs, "imgs_sizes"));
  result.batch.items = extents_of(images);
  const std::int64_t expected = total_patches(images), given = result.batch.values.size(0);
  if (expected != given)
    refuse(inputs, "imgs_sizes",
           fmt::format("images of these sizes have {}, not {}", counted(expected, "patch"), given),
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
    refuse_shape(inputs, "pixel_values", pixels,
                 fmt::format("give [images, {}, height, width] with at least one image", config.channels));
  const std::vector<ImageSize> sizes(static_cast<std::size_t>(pixels.size(0)), {pixels.size(2), pixels.size(3)});
  ImageInputs result;
  const std::vector<PatchGrid> images = patch_grids(sizes, config.patch, where_is(inputs, "pixel_values"));
  result.batch.items = extents_of(images);
  result.batch.values = patchify(pixels, config.patch);
  result.shape = {pixels.size(0), images[0].patches(), config.hidden};
  return result;
}

ImageInputs read_images(const SafetensorsReader& inputs, const RadioConfig& config) {
  const bool packed = inputs.find("patches") != nullptr;
  if (packed)
    check_names(inputs, {"features_grad", "imgs_sizes", "patches"});
  else
    check_names(inputs, {"features_grad", "pixel_values"});
  ImageInputs result = packed ? read_packed_images(inputs, config) : read_equal_images(inputs, config);
  if (inputs.find("features_grad")) {
    const at::Tensor grads = read_floats(inputs, "features_grad");
    if (grads.sizes().vec() != result.shape)
      refuse_shape(inputs, "features_grad", grads, fmt::format("features will have {}", shape_text(result.shape)));
    result.batch.feature_grads = grads.reshape({-1, config.hidden});
  }
  return result;
}

// --- both

void check_outputs(const ForwardRequest& request) {
  const auto refuse_path = [](std::string what, std::string fix) {
    throw ConfigError({std::move(what), "--outputs", std::move(fix)});
  };
  if (request.outputs.empty()) refuse_path("the name of the output file is empty", "give the name of a file");
  std::error_code error;
  // Absolute, since the bare name of a file that does not exist yet would have no folder.
  const fs::path path = fs::weakly_canonical(fs::absolute(request.outputs), error), folder = path.parent_path();
  if (!is_folder(folder)) refuse_path(fmt::format("the folder '{}' does not exist", folder.string()), "create it");
  if (access(folder.c_str(), W_OK) != 0)
    refuse_path(fmt::format("the folder '{}' cannot be written: {}", folder.string(), std::strerror(errno)),
                "choose another");
  if (is_there(path) && !is_file(path))
    refuse_path(fmt::format("'{}' is not a plain file", request.outputs), "give the name of a new file");
  if (path == fs::weakly_canonical(request.inputs, error))
    refuse_path("the outputs would replace the inputs", "choose another name");
  if (folder == fs::weakly_canonical(request.model, error))
    refuse_path("the output file would be in the model's folder", "choose another folder");
}

void check_vision_layout(const ForwardRequest& request) {
  const ModuleConfig& layout = request.layout;
  if (request.sequence_parallel)
    throw ConfigError({"radio does not support sequence parallelism", "layout", "leave out --sequence-parallel"});
  for (const auto& [name, size] : {std::pair("cp", layout.cp), {"ep", layout.ep}, {"expt_tp", layout.expt_tp}})
    if (size != 1)
      throw ConfigError({fmt::format("radio does not support {}={}", name, size), "layout", "use tp, pp and dp"});
}

// Rank 0's file. Results are written one by one, because all gradients together may not fit in memory.
class OutputFile {
 public:
  using Shape = std::vector<std::int64_t>;

  OutputFile(const ForwardRequest& request, const StoredModel& model, const std::string& output, const Shape& shape,
             bool has_loss)
      : dtype_(scalar_type(request.dtype)), wide_(dtype_ == at::kDouble ? at::kDouble : at::kFloat),
        path_(request.outputs), output_(output) {
    std::vector<TensorInfo> tensors = {{output, stored_dtype(wide_), shape}};
    if (has_loss) tensors.push_back({"loss", stored_dtype(wide_), {}});
    if (request.grads) gradients_ = trainable_tensors(model);
    for (const ForeignTensor& tensor : gradients_)
      tensors.push_back({"grad." + tensor.name, stored_dtype(dtype_), tensor.shape});
    writer_.emplace(SafetensorsWriter::to_file(request.outputs, tensors));
    shape_ = shape;
  }

  void write_gradient(const std::string& parameter, const at::Tensor& gradient) {
    for (const ForeignTensor& tensor : gradients_)
      if (tensor.param == parameter) write_tensor(*writer_, "grad." + tensor.name, foreign_tensor(tensor, gradient));
  }

  // Returns a description of the file's contents.
  std::string finish(const ForwardResult& result) {
    write_tensor(*writer_, output_, result.output.view(shape_).to(wide_));
    if (result.loss.defined()) write_tensor(*writer_, "loss", result.loss.to(wide_));
    writer_->finish();
    std::string text = fmt::format("{}: {} [{}]", path_, output_, fmt::join(shape_, ", "));
    if (result.loss.defined()) text += fmt::format(", loss {:.6g}", result.loss.item<double>());
    if (!gradients_.empty()) text += ", " + counted(std::ssize(gradients_), "gradient");
    return text;
  }

 private:
  static std::vector<ForeignTensor> trainable_tensors(const StoredModel& model) {
    std::set<std::string> trainable;
    const auto specs = std::visit([](const auto& config) { return declare_parameters(config); }, model.config);
    for (const ParamSpec& spec : specs)
      if (spec.trainable) trainable.insert(spec.name);
    std::vector<ForeignTensor> tensors = all_spellings(model);
    std::erase_if(tensors, [&](const ForeignTensor& tensor) { return !trainable.count(tensor.param); });
    return tensors;
  }

  const at::ScalarType dtype_, wide_;
  const std::string path_, output_;
  Shape shape_;
  std::vector<ForeignTensor> gradients_;
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace

Topology check_forward(const ForwardRequest& request) {
  check_outputs(request);
  const StoredModel model = open_model(request.model);
  throw_if_any(std::visit([&](const auto& config) { return validate(config, layout_sizes(request.layout), "layout"); },
                          model.config));
  const auto* language = std::get_if<HybridLmConfig>(&model.config);
  const SafetensorsReader inputs(request.inputs);
  if (language) {
    read_tokens(inputs, *language, request.grads);
  } else {
    check_vision_layout(request);
    read_images(inputs, std::get<RadioConfig>(model.config));
  }
  TopologyConfig topology;
  topology.modules = {request.layout};
  const bool has_experts = language && language->pattern.find('E') != std::string::npos;
  return Topology(
      topology,
      {.micro_batch = 1, .global_batch = request.layout.dp, .num_experts = has_experts ? language->experts : 0});
}

std::string forward_files(const ForwardRequest& request, const Topology& topology, World& world) {
  const StoredModel model = open_model(request.model);
  const SafetensorsReader inputs(request.inputs);
  const Fill fill = [&](Parameters& parameters) {
    for (const Parameters::Entry& entry : parameters.entries()) {
      at::Tensor local = entry.value;
      load(model, entry.spec, parameters.coordinates(), local);
    }
  };
  std::optional<OutputFile> file;
  const ForwardOptions options = {
      .dtype = scalar_type(request.dtype),
      .grads = request.grads,
      .sequence_parallel = request.sequence_parallel,
      .recompute = {.full = request.recompute},
      .take_gradient = [&](const std::string& name, const at::Tensor& grad) { file->write_gradient(name, grad); }};
  ForwardResult result;
  if (const auto* language = std::get_if<HybridLmConfig>(&model.config)) {
    TokenInputs tokens = read_tokens(inputs, *language, request.grads);
    tokens.shape.push_back(language->vocab);
    if (world.rank() == 0) file.emplace(request, model, "logits", tokens.shape, tokens.batch.labels.defined());
    result = forward_language(*language, fill, tokens.batch, options, topology, world);
  } else {
    const auto& vision = std::get<RadioConfig>(model.config);
    const ImageInputs images = read_images(inputs, vision);
    if (world.rank() == 0) file.emplace(request, model, "features", images.shape, request.grads);
    result = forward_encoder(vision, fill, images.batch, options, topology, world);
  }
  return file ? file->finish(result) : "";
}

}  // namespace braid
