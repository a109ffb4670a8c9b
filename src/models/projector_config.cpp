#include "models/projector_config.h"

#include "models/checks.h"

namespace braid {

void describe(Fields& fields, ProjectorConfig& c) {
  fields.choice("kind", c.kind, {"affine", "mlp"}, "one linear map, or two with a squared ReLU between");
  fields.field("input", c.input, "width of the encoder's features");
  fields.field("hidden", c.hidden, "inner width of the mlp");
  fields.field("output", c.output, "width of the language model");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
}

std::vector<ParamSpec> declare_parameters(const ProjectorConfig& c, int stages) {
  const InitRule normal = {InitRule::Normal, c.init_std};
  std::vector<ParamSpec> specs;
  if (c.kind == "affine")
    specs = {{.name = "encoder.weight", .shape = {c.output, c.input}, .tp_dim = 0, .init = normal}};
  else
    specs = {{.name = "encoder.linear_fc1.weight", .shape = {c.hidden, c.input}, .tp_dim = 0, .init = normal},
             {.name = "encoder.linear_fc2.weight", .shape = {c.output, c.hidden}, .tp_dim = 1, .init = normal}};
  for (ParamSpec& spec : specs) spec.stage = stages - 1;
  return specs;
}

std::vector<Problem> validate(const ProjectorConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  checks.size("input", c.input);
  checks.size("output", c.output);
  const bool affine = c.kind == "affine";
  if (!affine) checks.size("hidden", c.hidden);
  checks.divides(affine ? "output" : "hidden", affine ? c.output : c.hidden, layout.tp,
                 fmt::format("tp={}", layout.tp));
  return checks.take();
}

}  // namespace braid
