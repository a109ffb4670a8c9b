// A Llama-style decoder as data: its sizes, its parameters and which layouts it supports. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct LlamaConfig {
  int layers = 2, hidden = 64, vocab = 256;
  int heads = 4, kv_heads = 2, head_dim = 16;
  int ffn = 128;  // width of the gate and of the up projection
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tie_embeddings = false;  // the output layer shares the embedding's weight; on one pipeline stage only
};

void describe(Fields& fields, LlamaConfig& config);
std::vector<int> stage_bounds(const LlamaConfig& config, int pp);  // stage s has layers [bounds[s], bounds[s + 1])

// Every parameter of the model, named as Megatron's GPT model names it, in layer order.
std::vector<ParamSpec> declare_parameters(const LlamaConfig& config, int pp = 1);

// Why the config is invalid or does not support this layout; `where` of each problem is "<where>.<field>".
std::vector<Problem> validate(const LlamaConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
