// Letters as pixels, from a font of the system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/image/image.h"

namespace braid {

struct RenderedText {
  PixelSize size{};
  std::vector<std::uint8_t> coverage{};  // [height, width]
};

class Font {
 public:
  // ConfigError if the build has no FreeType, or the file is not a font.
  explicit Font(const std::string& path);
  ~Font();

  // ASCII text whose letters are about `height` pixels high, cropped to its ink.
  RenderedText render(const std::string& text, int height) const;

 private:
  struct Face;
  std::unique_ptr<Face> face_;
};

bool can_draw_letters();  // whether the build has FreeType

// The first of the usual fonts that is installed; empty: none.
std::string find_font();

}  // namespace braid
