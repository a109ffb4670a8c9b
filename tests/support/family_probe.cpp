// One forward and backward of a model family for a test in another language.
//
//   family_probe llama|clip|audio CONFIG INPUTS OUTPUTS
//
// CONFIG is a file of the family's settings; INPUTS a safetensors file with `weight.<parameter>` of every parameter, in
// the type that is computed in, and
//   llama   ids, labels (of the next token) [T] and offsets of the sequences
//   clip    patches [P, pixels], features_grad; images are as large as the settings say
//   audio   frames [F, mels], lengths, features_grad
// OUTPUTS gets `output` (logits or features), `loss` and `grad.<parameter>`.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include "base/error.h"
#include "ckpt/tensor_io.h"
#include "comm/world.h"
#include "forward/forward.h"
#include "support/thread_backend.h"

namespace {

using namespace braid;

at::Tensor input(const SafetensorsReader& inputs, const std::string& name) {
  const StoredTensor* found = inputs.find(name);
  if (found == nullptr) throw ConfigError({fmt::format("there is no tensor '{}'", name), inputs.path(), "add it"});
  return read_tensor(*found);
}

std::vector<std::int64_t> integers(const SafetensorsReader& inputs, const std::string& name) {
  const at::Tensor values = input(inputs, name).to(at::kLong);
  return {values.data_ptr<std::int64_t>(), values.data_ptr<std::int64_t>() + values.numel()};
}

template <class Config>
Config read_config(const std::string& path) {
  Config config;
  YamlReader reader = YamlReader::from_file(path);
  describe(reader, config);
  std::vector<Problem> problems = reader.finish();
  if (problems.empty()) problems = validate(config, {}, path);
  if (!problems.empty()) throw ConfigError(problems);
  return config;
}

// One rank with its own topology.
struct Run {
  const SafetensorsReader& inputs;
  const Topology& topology;
  World& world;
  ForwardOptions options{.grads = true};

  void fill(Parameters& parameters) const {
    at::NoGradGuard guard;
    for (const Parameters::Entry& entry : parameters.entries()) {
      const at::Tensor value = input(inputs, "weight." + entry.spec.name);
      BRAID_CHECK(value.sizes() == entry.value.sizes(), "shape of {}", entry.spec.name);
      at::Tensor(entry.value).copy_(value);
    }
  }

  ForwardResult llama(const LlamaConfig& config) const {
    const TokenBatch batch = {input(inputs, "ids"), input(inputs, "labels"), integers(inputs, "offsets")};
    return forward_language(config, filler(), batch, options, topology, world);
  }
  ForwardResult clip(const ClipConfig& config) const {
    ItemBatch batch = {input(inputs, "patches"), input(inputs, "features_grad"), {}};
    const std::int64_t side = config.patch_side();
    batch.items.assign(static_cast<std::size_t>(batch.values.size(0) / (side * side)), {side, side});
    return forward_encoder(config, filler(), batch, options, topology, world);
  }
  ForwardResult audio(const AudioConfig& config) const {
    const ItemBatch batch = {input(inputs, "frames"), input(inputs, "features_grad"),
                             extents_of(integers(inputs, "lengths"))};
    return forward_encoder(config, filler(), batch, options, topology, world);
  }

 private:
  Fill filler() const {
    return [this](Parameters& parameters) { fill(parameters); };
  }
};

ForwardResult forward(const std::string& family, const std::string& config, const Run& run) {
  if (family == "llama") return run.llama(read_config<LlamaConfig>(config));
  if (family == "clip") return run.clip(read_config<ClipConfig>(config));
  if (family == "audio") return run.audio(read_config<AudioConfig>(config));
  throw ConfigError({fmt::format("'{}' is no family", family), "the first argument", "use llama, clip or audio"});
}

at::ScalarType type_of_weights(const SafetensorsReader& inputs) {
  for (const StoredTensor& tensor : inputs.tensors())
    if (tensor.name.starts_with("weight.")) return read_tensor(tensor).scalar_type();
  throw ConfigError({"there are no weights", inputs.path(), "add them"});
}

void write(const ForwardResult& result, const std::string& path) {
  NamedTensors tensors = {{"output", result.output}, {"loss", result.loss}};
  for (const auto& [name, grad] : result.grads) tensors.emplace_back("grad." + name, grad);
  std::vector<TensorInfo> declared;
  for (const auto& [name, tensor] : tensors)
    declared.push_back({name, stored_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  SafetensorsWriter writer = SafetensorsWriter::to_file(path, declared);
  for (const auto& [name, tensor] : tensors) write_tensor(writer, name, tensor);
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    BRAID_CHECK_EQ(argc, 5, "family, settings, inputs, outputs");
    const SafetensorsReader inputs(argv[3]);
    TopologyConfig one_rank;
    one_rank.modules = {ModuleConfig{.name = "model"}};
    const Topology topology(one_rank, {});
    run_as_threads(1, [&](World& world) {
      const Run run{inputs, topology, world, {.dtype = type_of_weights(inputs), .grads = true}};
      write(forward(argv[1], argv[2], run), argv[4]);
    });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
