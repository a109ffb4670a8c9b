#include "models/providers.h"

#include <iterator>

#include "base/strings.h"
#include "models/checks.h"

namespace braid {
namespace {

std::vector<Problem> joint_problems(const Provider& p) {
  Checks checks(p.name + ".projector");
  const int input = p.vision.hidden * (p.pixel_shuffle ? 4 : 1);
  if (p.projector.input != input)
    checks.add("input", fmt::format("the projector takes {} channels, the encoder gives {}", p.projector.input, input),
               fmt::format("use input={}", input));
  if (p.projector.output != p.language.hidden)
    checks.add("output",
               fmt::format("the projector gives {} channels, the language model takes {}", p.projector.output,
                           p.language.hidden),
               fmt::format("use output={}", p.language.hidden));
  return checks.take();
}

}  // namespace

const std::vector<Provider>& providers() {
  static const std::vector<Provider> all = {nemotron_vlm_20l(), nemotron_vlm_54l(), tiny_vlm()};
  return all;
}

const Provider& provider(std::string_view name) {
  std::vector<std::string> names;
  for (const Provider& candidate : providers()) {
    if (candidate.name == name) return candidate;
    names.push_back(candidate.name);
  }
  const auto guess = nearest(name, names);
  throw ConfigError(
      {fmt::format("there is no model provider '{}'", name), "",
       guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use one of {}", fmt::join(names, ", "))});
}

int image_token_id(const Provider& provider, std::optional<int> from_tokenizer) {
  const int id = from_tokenizer.value_or(provider.mock_image_token_id), vocab = provider.language.vocab;
  if (id >= 0 && id < vocab) return id;
  const std::string range = fmt::format("beyond the {} rows of {}'s embedding", vocab, provider.name);
  if (id >= vocab && from_tokenizer)
    throw ConfigError({fmt::format("the tokenizer gives '{}' the id {}, {}", provider.image_token, id, range), "",
                       fmt::format("the token was added behind the vocabulary: use a tokenizer that already has '{}' "
                                   "among its {} tokens",
                                   provider.image_token, vocab)});
  throw ConfigError({fmt::format("the id {} of '{}' is {}", id, provider.image_token, range), "",
                     fmt::format("use an id from 0 to {}", vocab - 1)});
}

std::vector<Problem> validate(const Provider& provider, const LayoutSizes& language, const LayoutSizes& encoder) {
  std::vector<Problem> problems = joint_problems(provider);
  for (std::vector<Problem> more : {validate(provider.language, language, provider.name + ".language"),
                                    validate(provider.vision, encoder, provider.name + ".vision"),
                                    validate(provider.projector, encoder, provider.name + ".projector")})
    std::move(more.begin(), more.end(), std::back_inserter(problems));
  return problems;
}

}  // namespace braid
