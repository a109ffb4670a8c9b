// One sample as HTML: its pictures with the patches or tiles that the encoder sees, and its tokens, those to predict in
// colour.
#pragma once

#include <string>

#include "data/inspect/survey.h"
#include "data/samples/vision_input.h"

namespace braid {

// Never throws for a damaged sample; the view then says what is wrong.
std::string sample_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const SampleRef& ref);

// A picture alone. DataError if its header is damaged.
std::string picture_html(const Picture& picture);

}  // namespace braid
