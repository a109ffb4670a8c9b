// A drawn sample: an image with a question about it and the answer, or a question without an image. It depends only on
// the seed and the sample's number. Shapes have smooth edges; letters come from a font of the system.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/image/image.h"

namespace braid {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
};

// Whether a shape of radius 1 around the origin covers a point; y points down.
using Shape = bool (*)(double x, double y);

// Centre and half of the width, in pixels.
struct Spot {
  double x = 0, y = 0, radius = 0;
};

struct RenderedText {
  PixelSize size{};
  std::vector<std::uint8_t> coverage{};  // [height, width]; 255: fully
};

class Canvas {
 public:
  Canvas(PixelSize size, Colour background);

  void fill(Shape shape, const Spot& spot, Colour colour);
  // Mixes the colour into the image where the text covers it; its top left corner is at (x, y).
  void stamp(const RenderedText& text, int x, int y, Colour colour);

  const Image& image() const { return image_; }
  Image take() { return std::move(image_); }

 private:
  void mix(int x, int y, Colour colour, double share);

  Image image_;
};

class Font {
 public:
  virtual ~Font() = default;
  // ASCII text whose letters are about `height` pixels high, cropped to its ink.
  virtual RenderedText render(const std::string& text, int height) const = 0;
};

// The first of the usual fonts that is installed; null if there is none, or the build has no FreeType.
std::unique_ptr<Font> usual_font();

struct DrawnSample {
  std::string task;  // its name
  std::optional<Image> image{};
  std::string question{};  // empty: the answer is a caption
  std::string answer{};
};

// colour, shape, count, position, digit, word, caption, text
const std::vector<std::string>& drawing_tasks();

// All words of the questions, the answers and the turns around them.
std::vector<std::string> drawing_words();

// `tasks`: those to choose from. `font`: for digits and words; none if neither is among the tasks.
DrawnSample draw_sample(std::uint64_t seed, std::uint64_t number, const std::vector<std::string>& tasks,
                        const Font* font);

}  // namespace braid
