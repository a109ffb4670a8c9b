#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "data/draw/scene.h"

#ifdef BRAID_HAS_FREETYPE
#include <ft2build.h>
#include FT_FREETYPE_H
#endif

namespace braid {
namespace {

constexpr int kSubpixels = 4;  // per side: coverage is counted on this grid

}  // namespace

Canvas::Canvas(PixelSize size, Colour background) : image_(size) {
  for (int y = 0; y < size.height; ++y)
    for (int x = 0; x < size.width; ++x) mix(x, y, background, 1);
}

void Canvas::fill(Shape shape, const Spot& spot, Colour colour) {
  const auto first = [](double at) { return std::max(0, static_cast<int>(std::floor(at))); };
  const auto [width, height] = image_.size();
  for (int y = first(spot.y - spot.radius); y < std::min<double>(height, spot.y + spot.radius + 1); ++y)
    for (int x = first(spot.x - spot.radius); x < std::min<double>(width, spot.x + spot.radius + 1); ++x) {
      int covered = 0;
      for (int i = 0; i < kSubpixels * kSubpixels; ++i)
        covered += shape((x + (i % kSubpixels + 0.5) / kSubpixels - spot.x) / spot.radius,
                         (y + (i / kSubpixels + 0.5) / kSubpixels - spot.y) / spot.radius);
      if (covered > 0) mix(x, y, colour, static_cast<double>(covered) / (kSubpixels * kSubpixels));
    }
}

void Canvas::stamp(const RenderedText& text, int x, int y, Colour colour) {
  for (int row = std::max(0, -y); row < std::min(text.size.height, image_.size().height - y); ++row)
    for (int column = std::max(0, -x); column < std::min(text.size.width, image_.size().width - x); ++column)
      mix(x + column, y + row, colour, text.coverage[static_cast<std::size_t>(row * text.size.width + column)] / 255.0);
}

void Canvas::mix(int x, int y, Colour colour, double share) {
  std::uint8_t* pixel = image_.row(y) + 3 * x;
  const std::array<std::uint8_t, 3> wanted = {colour.red, colour.green, colour.blue};
  for (std::size_t c = 0; c < 3; ++c)
    pixel[c] =
        static_cast<std::uint8_t>(std::lround(share >= 1 ? wanted[c] : pixel[c] + share * (wanted[c] - pixel[c])));
}

#ifdef BRAID_HAS_FREETYPE
namespace {

class FreeTypeFont : public Font {
 public:
  explicit FreeTypeFont(const char* path) {
    if (FT_Init_FreeType(&library_) != 0 || FT_New_Face(library_, path, 0, &face_) != 0)
      throw ConfigError({fmt::format("cannot read the font '{}'", path), "", "install the package fonts-dejavu-core"});
  }
  FreeTypeFont(const FreeTypeFont&) = delete;
  FreeTypeFont& operator=(const FreeTypeFont&) = delete;
  ~FreeTypeFont() override {
    FT_Done_Face(face_);
    FT_Done_FreeType(library_);
  }

  // Glyphs are rendered twice: first to find the rectangle that all of them cover together.
  RenderedText render(const std::string& text, int height) const override {
    FT_Set_Pixel_Sizes(face_, 0, static_cast<FT_UInt>(height * 4 / 3));  // capitals take about 3/4 of the size
    const auto for_each_glyph = [&](const auto& visit) {
      int pen = 0;
      for (const char letter : text) {
        if (FT_Load_Char(face_, static_cast<unsigned char>(letter), FT_LOAD_RENDER | FT_LOAD_NO_HINTING) != 0) continue;
        const FT_GlyphSlot slot = face_->glyph;
        const PixelSize size = {static_cast<int>(slot->bitmap.width), static_cast<int>(slot->bitmap.rows)};
        visit(slot->bitmap, size, pen + slot->bitmap_left, -slot->bitmap_top);
        pen += static_cast<int>(slot->advance.x >> 6);
      }
    };
    int left = std::numeric_limits<int>::max(), right = 0, top = left, bottom = -left;
    for_each_glyph([&](const FT_Bitmap&, PixelSize size, int x, int y) {
      left = std::min(left, x);
      right = std::max(right, x + size.width);
      top = std::min(top, y);
      bottom = std::max(bottom, y + size.height);
    });
    if (top > bottom) return {};
    RenderedText rendered = {{right - left, bottom - top}, {}};
    rendered.coverage.resize(static_cast<std::size_t>(rendered.size.pixels()));
    for_each_glyph([&](const FT_Bitmap& bitmap, PixelSize size, int x, int y) {
      for (int row = 0; row < size.height; ++row)
        for (int column = 0; column < size.width; ++column) {
          std::uint8_t& covered =
              rendered.coverage[static_cast<std::size_t>((y - top + row) * rendered.size.width + x - left + column)];
          covered = std::max(covered, bitmap.buffer[row * bitmap.pitch + column]);
        }
    });
    return rendered;
  }

 private:
  FT_Library library_ = nullptr;
  FT_Face face_ = nullptr;
};

}  // namespace

std::unique_ptr<Font> usual_font() {
  for (const char* path :
       {"/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "/usr/share/fonts/truetype/liberation/LiberationSans-Bold.ttf"})
    if (std::filesystem::exists(path)) return std::make_unique<FreeTypeFont>(path);
  return nullptr;
}
#else
std::unique_ptr<Font> usual_font() { return nullptr; }
#endif

}  // namespace braid
