// Models as data: the sizes of language models, encoders and projectors, their parameters, the pipeline stage of each
// layer, and which layouts they support. No libtorch here.
//
// Every config has these functions. Parameters are named as Megatron names them, in layer order. Problems tell why the
// config is invalid or does not support a layout; `where` of each is "<where>.<field>".
//
//   void describe(Fields& fields, Config& config);
//   std::vector<ParamSpec> declare_parameters(const Config& config, int pp = 1);
//   std::vector<Problem> validate(const Config& config, const LayoutSizes& layout, const std::string& where);
#pragma once

#include "base/config.h"
#include "nn/config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

// Distributes layers over pipeline stages as evenly as possible: stage s has [bounds[s], bounds[s + 1]).
std::vector<int> even_stages(int layers, int pp);

// Far larger than any model: an invalid config must not make the reader list a billion tensors or overflow their sizes.
inline constexpr std::int64_t kMostLayers = 1 << 14, kMostWidth = 1 << 20, kMostVocab = 1 << 24;

// Collects problems with the fields of a config.
class Checks {
 public:
  explicit Checks(std::string where, const LayoutSizes& layout = {}) : layout_(layout), where_(std::move(where)) {}

  // From 1 to `most`.
  void size(const char* field, std::int64_t value, std::int64_t most = kMostWidth);
  // `value` must be divisible by `parts`, which `by` names. Parts below 1 are ignored: the check of the layout reports
  // them.
  void divides(const char* field, std::int64_t value, const char* by, std::int64_t parts);
  void divides_tp(const char* field, std::int64_t value) { divides(field, value, "tp", layout_.tp); }
  // Context parallelism exchanges sequence shares for heads. Each rank of tp x cp gets whole groups of heads, or a part
  // of the heads of one group.
  struct Heads {
    const char* field;
    std::int64_t count;
  };
  void grouped_heads(const Heads& heads, const Heads& groups);
  // No pipeline stage may be empty.
  void stages(const char* field, int layers);
  void norm_eps(double eps);
  void add(const char* field, std::string what, std::string fix);

  bool failed() const { return !problems_.empty(); }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  const LayoutSizes layout_;
  const std::string where_;
  std::vector<Problem> problems_;
};

// --- the Nemotron hybrid language model

// The pattern has one letter per residual layer: M Mamba2, * attention, E mixture of experts, - dense MLP. A '|'
// between letters starts a new pipeline stage; without any, layers are split as evenly as possible.
struct HybridLmConfig {
  std::string pattern = "M*E-";
  int hidden = 64, vocab = 256;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  Fp8Mode fp8 = Fp8Mode::Off;  // of the linear maps of layers, all but the router's

  int heads = 4, kv_heads = 2, head_dim = 16;  // attention

  int mamba_heads = 8, mamba_head_dim = 16, mamba_groups = 2, mamba_state = 16, mamba_conv = 4, mamba_chunk = 128;
  double mamba_dt_min = 0, mamba_dt_max = 0;  // softplus(dt) is clamped to this range; dt_max 0: no upper limit
  bool mamba_conv_bias = true;

  int ffn = 128;  // of a dense MLP layer

  int experts = 8, top_k = 2, expert_ffn = 64, shared_ffn = 128;  // shared_ffn 0: no shared expert
  double router_scaling = 1;
  bool router_normalize = true;
  double aux_loss_coeff = 0;  // of the sequence auxiliary loss
  double expert_bias_rate = 1e-3;
  bool force_load_balancing = false;  // random routing, for benchmarks
};

inline constexpr std::string_view kLayerLetters = "M*E-";

// The sizes that only layers of one kind have.
struct LayerSize {
  char letter;
  const char* key;
  int HybridLmConfig::*value;
  const char* help;
};
inline constexpr LayerSize kLayerSizes[] = {
    {'*', "heads", &HybridLmConfig::heads, "query heads of attention"},
    {'*', "kv_heads", &HybridLmConfig::kv_heads, "key/value heads of attention"},
    {'*', "head_dim", &HybridLmConfig::head_dim, "width of an attention head"},
    {'M', "mamba_heads", &HybridLmConfig::mamba_heads, "heads of a Mamba2 layer"},
    {'M', "mamba_head_dim", &HybridLmConfig::mamba_head_dim, "width of a Mamba2 head"},
    {'M', "mamba_groups", &HybridLmConfig::mamba_groups, "groups of heads that share B and C"},
    {'M', "mamba_state", &HybridLmConfig::mamba_state, "state size"},
    {'M', "mamba_conv", &HybridLmConfig::mamba_conv, "taps of the causal convolution"},
    {'M', "mamba_chunk", &HybridLmConfig::mamba_chunk, "chunk length of the scan"},
    {'-', "ffn", &HybridLmConfig::ffn, "inner width of an MLP layer"},
    {'E', "experts", &HybridLmConfig::experts, "experts of a mixture-of-experts layer"},
    {'E', "top_k", &HybridLmConfig::top_k, "experts per token"},
    {'E', "expert_ffn", &HybridLmConfig::expert_ffn, "inner width of an expert"},
    {'E', "shared_ffn", &HybridLmConfig::shared_ffn, "inner width of the shared expert, 0: none"}};
bool has_layer(const HybridLmConfig& config, char letter);

// Why a text is not a layer pattern: it is too long, or has an invalid letter, the first of which is marked. Nothing
// for a valid pattern. The caller sets the problem's `where`.
std::optional<Problem> pattern_problem(const std::string& pattern, bool may_have_stages);

// The pattern without '|'.
std::string layer_letters(const HybridLmConfig& config);

// As even_stages(), unless the pattern has stages, whose number must then be pp; validate() checks this.
std::vector<int> stage_bounds(const HybridLmConfig& config, int pp);

void describe(Fields& fields, HybridLmConfig& config);
std::vector<ParamSpec> declare_parameters(const HybridLmConfig& config, int pp = 1);
std::vector<Problem> validate(const HybridLmConfig& config, const LayoutSizes& layout, const std::string& where);

// --- a Llama-style decoder

struct LlamaConfig {
  int layers = 2, hidden = 64, vocab = 256;
  int heads = 4, kv_heads = 2, head_dim = 16;
  int ffn = 128;  // width of the gate and of the up projection
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tie_embeddings = false;  // the output layer shares the embedding's weight; on one pipeline stage only
};

inline std::vector<int> stage_bounds(const LlamaConfig& config, int pp) { return even_stages(config.layers, pp); }
void describe(Fields& fields, LlamaConfig& config);
std::vector<ParamSpec> declare_parameters(const LlamaConfig& config, int pp = 1);
std::vector<Problem> validate(const LlamaConfig& config, const LayoutSizes& layout, const std::string& where);

// --- RADIO

struct RadioConfig {
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  int patch = 16, channels = 3;
  int position_side = 128;  // the position table covers this many patches in each direction
  int class_tokens = 10;    // class and register tokens in front of each image
  double norm_eps = 1e-6;
  double init_std = 0.02;
  GeluForm gelu = GeluForm::Erf;
  bool qkv_bias = true;
  bool layer_scale = false;  // a factor per channel on each residual branch
  bool final_norm = false;
  bool normalize_pixels = false;  // (pixel - mean) / std inside the model, by buffers
};

void describe(Fields& fields, RadioConfig& config);
std::vector<ParamSpec> declare_parameters(const RadioConfig& config, int pp = 1);
std::vector<Problem> validate(const RadioConfig& config, const LayoutSizes& layout, const std::string& where);

// --- CLIP: square images of one size

struct ClipConfig {
  int hidden = 64, layers = 3, heads = 4, ffn = 256;
  int feature_layer = -2;  // the layer that outputs the features: -1 the last one, -2 the one before, n the n-th
  int image_side = 56, patch = 14, channels = 3;  // in pixels
  double norm_eps = 1e-5;
  double init_std = 0.02;
  GeluForm gelu = GeluForm::Quick;

  int patch_side() const { return image_side / patch; }  // of an image, in patches
};

void describe(Fields& fields, ClipConfig& config);
std::vector<ParamSpec> declare_parameters(const ClipConfig& config, int pp = 1);
std::vector<Problem> validate(const ClipConfig& config, const LayoutSizes& layout, const std::string& where);

// --- an audio encoder like Whisper's

struct AudioConfig {
  int mels = 80;  // channels of a frame
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  int stack = 2;  // encoded frames, of two input frames each, that form one token's features
  double norm_eps = 1e-5;
  double init_std = 0.02;

  int frames_per_token() const { return 2 * stack; }  // input frames
  int feature_width() const { return stack * hidden; }
};

void describe(Fields& fields, AudioConfig& config);
std::vector<ParamSpec> declare_parameters(const AudioConfig& config, int pp = 1);
std::vector<Problem> validate(const AudioConfig& config, const LayoutSizes& layout, const std::string& where);

// --- the transformer layers that every encoder has between its embedding and its features: pre-norm attention inside
// each image or clip, then an MLP, all with biases

struct EncoderLayersConfig {
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  GeluForm gelu = GeluForm::Erf;
  bool qkv_bias = true;
  bool layer_scale = false;
};

// Of CLIP those up to feature_layer; later ones are neither declared nor run.
EncoderLayersConfig layers_of(const RadioConfig& config);
EncoderLayersConfig layers_of(const ClipConfig& config);
EncoderLayersConfig layers_of(const AudioConfig& config);

// --- the projector after an encoder, on the last of its `pp` stages

enum class ProjectorKind { Affine, Mlp };
constexpr auto choice_names(ProjectorKind) { return std::array{"affine", "mlp"}; }

struct ProjectorConfig {
  ProjectorKind kind = ProjectorKind::Affine;
  int input = 256, hidden = 1024, output = 64;  // hidden: of the mlp
  double init_std = 0.02;
};

void describe(Fields& fields, ProjectorConfig& config);
std::vector<ParamSpec> declare_parameters(const ProjectorConfig& config, int pp = 1);
std::vector<Problem> validate(const ProjectorConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
