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

enum class Shape { Circle, Square, Triangle, Diamond, Cross, Ring, Star, Bar };

// Centre and half of the width, in pixels.
struct Spot {
  double x = 0, y = 0, radius = 0;
};

class Canvas {
 public:
  Canvas(PixelSize size, Colour background);

  void fill(Shape shape, const Spot& spot, Colour colour);
  // Mixes the colour into the image where `coverage` (255: fully) says so; [height, width], top left corner at (x,
  // y).
  void stamp(const std::vector<std::uint8_t>& coverage, PixelSize size, int x, int y, Colour colour);

  const Image& image() const { return image_; }
  Image take() { return std::move(image_); }

 private:
  void mix(int x, int y, Colour colour, double share);

  Image image_;
};

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
