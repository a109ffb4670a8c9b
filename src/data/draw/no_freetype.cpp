#include "base/error.h"
#include "data/draw/font.h"

namespace braid {

struct Font::Face {};

Font::Font(const std::string&) {
  throw ConfigError({"this build cannot draw letters: it was made without FreeType", "",
                     "install libfreetype-dev and build again, or leave out digits and words"});
}
Font::~Font() = default;
RenderedText Font::render(const std::string&, int) const { return {}; }

bool can_draw_letters() { return false; }

}  // namespace braid
