#include <ft2build.h>
#include FT_FREETYPE_H

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "data/draw/font.h"

namespace braid {

struct Font::Face {
  FT_Library library = nullptr;
  FT_Face face = nullptr;
  ~Face() {
    if (face) FT_Done_Face(face);
    if (library) FT_Done_FreeType(library);
  }
};

Font::Font(const std::string& path) : face_(std::make_unique<Face>()) {
  if (FT_Init_FreeType(&face_->library) != 0 || FT_New_Face(face_->library, path.c_str(), 0, &face_->face) != 0)
    throw ConfigError({fmt::format("cannot read the font '{}'", path), "", "install the package fonts-dejavu-core"});
}

Font::~Font() = default;

RenderedText Font::render(const std::string& text, int height) const {
  struct Letter {
    int left, top;
    PixelSize size;
    std::vector<std::uint8_t> ink;
  };
  FT_Set_Pixel_Sizes(face_->face, 0, static_cast<FT_UInt>(height * 4 / 3));  // capitals take about 3/4 of the size
  std::vector<Letter> letters;
  int pen = 0, left = std::numeric_limits<int>::max(), right = 0, top = left, bottom = -left;
  for (const char letter : text) {
    if (FT_Load_Char(face_->face, static_cast<unsigned char>(letter), FT_LOAD_RENDER | FT_LOAD_NO_HINTING) != 0)
      continue;
    const FT_GlyphSlot slot = face_->face->glyph;
    Letter drawn = {pen + slot->bitmap_left,
                    -slot->bitmap_top,
                    {static_cast<int>(slot->bitmap.width), static_cast<int>(slot->bitmap.rows)},
                    {}};
    for (int row = 0; row < drawn.size.height; ++row)
      drawn.ink.insert(drawn.ink.end(), slot->bitmap.buffer + row * slot->bitmap.pitch,
                       slot->bitmap.buffer + row * slot->bitmap.pitch + drawn.size.width);
    pen += static_cast<int>(slot->advance.x >> 6);
    left = std::min(left, drawn.left);
    right = std::max(right, drawn.left + drawn.size.width);
    top = std::min(top, drawn.top);
    bottom = std::max(bottom, drawn.top + drawn.size.height);
    letters.push_back(std::move(drawn));
  }
  if (letters.empty()) return {};
  RenderedText rendered = {{right - left, bottom - top}, {}};
  rendered.coverage.resize(static_cast<std::size_t>(rendered.size.pixels()));
  for (const Letter& letter : letters)
    for (int row = 0; row < letter.size.height; ++row)
      for (int column = 0; column < letter.size.width; ++column) {
        const auto at =
            static_cast<std::size_t>((letter.top - top + row) * rendered.size.width + letter.left - left + column);
        rendered.coverage[at] =
            std::max(rendered.coverage[at], letter.ink[static_cast<std::size_t>(row * letter.size.width + column)]);
      }
  return rendered;
}

bool can_draw_letters() { return true; }

}  // namespace braid
