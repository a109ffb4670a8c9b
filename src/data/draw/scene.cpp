#include "data/draw/scene.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "base/strings.h"

namespace braid {
namespace {

template <class T>
struct Named {
  const char* name;
  T value;
};
constexpr std::array<Named<Colour>, 9> kColours = {{{"red", {220, 30, 35}},
                                                    {"green", {30, 150, 60}},
                                                    {"blue", {40, 70, 220}},
                                                    {"yellow", {245, 215, 20}},
                                                    {"orange", {245, 130, 10}},
                                                    {"purple", {130, 40, 170}},
                                                    {"pink", {250, 150, 195}},
                                                    {"brown", {115, 65, 25}},
                                                    {"black", {15, 15, 15}}}};
constexpr Colour kInk = {15, 15, 15};  // of letters and digits

// Five points: the limit falls linearly between the directions of points and of notches.
bool covers_star(double x, double y) {
  const double fifth = 2 * std::numbers::pi / 5, angle = std::atan2(x, -y) + 2 * std::numbers::pi;
  const double from_point = std::abs(std::remainder(angle, fifth)) / (fifth / 2);
  return std::hypot(x, y) <= 1 - 0.6 * from_point;
}

bool covers_cross(double x, double y) {
  return std::max(std::abs(x), std::abs(y)) <= 1 && std::min(std::abs(x), std::abs(y)) <= 0.3;
}

constexpr std::array<Named<Shape>, 8> kShapes = {{
    {"circle", [](double x, double y) { return std::hypot(x, y) <= 1; }},
    {"square", [](double x, double y) { return std::max(std::abs(x), std::abs(y)) <= 0.9; }},
    {"triangle", [](double x, double y) { return y <= 0.9 && std::abs(x) <= 0.5 * (y + 0.95); }},
    {"diamond", [](double x, double y) { return std::abs(x) / 0.7 + std::abs(y) <= 1; }},
    {"cross", covers_cross},
    {"ring", [](double x, double y) { return std::hypot(x, y) <= 1 && std::hypot(x, y) >= 0.55; }},
    {"star", covers_star},
    {"bar", [](double x, double y) { return std::abs(x) <= 1 && std::abs(y) <= 0.3; }},
}};

constexpr std::array kNumbers = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};
constexpr std::array kPlaces = {"top left", "top",         "top right", "left",        "centre",
                                "right",    "bottom left", "bottom",    "bottom right"};
constexpr std::array kWords = {"cat", "dog", "sun", "tree", "fish", "bird", "moon", "boat", "hand", "door"};

constexpr std::array<PixelSize, 5> kSizes = {{{32, 32}, {48, 48}, {64, 64}, {64, 48}, {48, 64}}};
constexpr std::uint64_t kDrawsPerSample = 256;

// The random choices of one sample, in order.
class Choices {
 public:
  Choices(std::uint64_t seed, std::uint64_t number) : random_(seed, "drawing"), next_(number * kDrawsPerSample) {}

  double uniform(double low = 0, double high = 1) { return low + (high - low) * random_.uniform(next_++); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * static_cast<double>(n)); }
  template <class Items>
  const auto& one_of(const Items& items) {
    return items[below(std::size(items))];
  }

 private:
  const RandomField random_;
  std::uint64_t next_;
};

Colour background(Choices& choices) {
  const auto level = static_cast<std::uint8_t>(choices.uniform(110, 131));
  return {level, level, level};
}

// The middle of one of 3 x 3 cells, with the largest radius that stays inside, both slightly changed.
Spot cell_spot(PixelSize size, std::size_t cell, Choices& choices) {
  const double width = size.width / 3.0, height = size.height / 3.0;
  const double radius = std::min(width, height) / 2 * choices.uniform(0.85, 0.95);
  return {(static_cast<double>(cell % 3) + 0.5) * width + choices.uniform(-0.5, 0.5),
          (static_cast<double>(cell / 3) + 0.5) * height + choices.uniform(-0.5, 0.5), radius};
}

// One large shape near the middle.
Spot large_spot(PixelSize size, Choices& choices) {
  const double radius = std::min(size.width, size.height) * choices.uniform(0.4, 0.45);
  return {size.width / 2.0 + choices.uniform(-1, 1), size.height / 2.0 + choices.uniform(-1, 1), radius};
}

std::string plural(const char* shape) { return std::string(shape) + (std::string_view(shape) == "cross" ? "es" : "s"); }

std::string with_article(const std::string& words) {
  return (std::string_view("aeiou").find(words.front()) == std::string_view::npos ? "a " : "an ") + words;
}

using Draw = void (*)(DrawnSample& sample, Choices& choices, const Font* font);

struct DrawnShape {
  const char *colour, *shape;
};

// One large shape in the sample's image.
DrawnShape draw_one(DrawnSample& sample, Choices& choices) {
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const Named<Shape>& shape = choices.one_of(kShapes);
  const Named<Colour>& colour = choices.one_of(kColours);
  canvas.fill(shape.value, large_spot(canvas.image().size(), choices), colour.value);
  sample.image = canvas.take();
  return {colour.name, shape.name};
}

void draw_colour(DrawnSample& sample, Choices& choices, const Font*) {
  const auto [colour, shape] = draw_one(sample, choices);
  sample.question = fmt::format("what colour is the {}?", shape);
  sample.answer = colour;
}

void draw_shape(DrawnSample& sample, Choices& choices, const Font*) {
  const auto [colour, shape] = draw_one(sample, choices);
  sample.question = fmt::format("which shape is {}?", colour);
  sample.answer = shape;
}

void draw_caption(DrawnSample& sample, Choices& choices, const Font*) {
  const auto [colour, shape] = draw_one(sample, choices);
  sample.answer = with_article(fmt::format("{} {}", colour, shape));
}

void draw_count(DrawnSample& sample, Choices& choices, const Font*) {
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const Named<Shape>& shape = choices.one_of(kShapes);
  const Named<Colour>& colour = choices.one_of(kColours);
  std::array<std::size_t, 9> cells = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (std::size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[choices.below(i)]);
  const std::size_t count = 1 + choices.below(9);
  for (std::size_t i = 0; i < count; ++i)
    canvas.fill(shape.value, cell_spot(canvas.image().size(), cells[i], choices), colour.value);
  sample.question = fmt::format("how many {} are there?", plural(shape.name));
  sample.answer = kNumbers[count];
  sample.image = canvas.take();
}

void draw_position(DrawnSample& sample, Choices& choices, const Font*) {
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const Named<Shape>& shape = choices.one_of(kShapes);
  const std::size_t cell = choices.below(kPlaces.size());
  canvas.fill(shape.value, cell_spot(canvas.image().size(), cell, choices), choices.one_of(kColours).value);
  sample.question = fmt::format("where is the {}?", shape.name);
  sample.answer = kPlaces[cell];
  sample.image = canvas.take();
}

void write_text(const std::string& text, DrawnSample& sample, Choices& choices, const Font* font) {
  BRAID_CHECK(font, "a font for '{}'", text);
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const auto [width, height] = canvas.image().size();
  // As large as it fits.
  int letter_height = height * 3 / 4;
  RenderedText rendered = font->render(text, letter_height);
  while (letter_height > 4 && (rendered.size.width > width - 2 || rendered.size.height > height - 2))
    rendered = font->render(text, --letter_height);
  const auto place = [&](int room) { return std::max(0, room / 2 + static_cast<int>(choices.below(3)) - 1); };
  const int x = place(width - rendered.size.width);
  canvas.stamp(rendered, x, place(height - rendered.size.height), kInk);
  sample.image = canvas.take();
}

void draw_digit(DrawnSample& sample, Choices& choices, const Font* font) {
  const std::size_t digit = choices.below(10);
  sample.question = "which digit is this?";
  sample.answer = kNumbers[digit];
  write_text(std::to_string(digit), sample, choices, font);
}

void draw_word(DrawnSample& sample, Choices& choices, const Font* font) {
  sample.question = "which word is this?";
  sample.answer = choices.one_of(kWords);
  write_text(sample.answer, sample, choices, font);
}

void ask_without_image(DrawnSample& sample, Choices& choices, const Font*) {
  const std::size_t number = choices.below(9);
  const bool up = choices.below(2) == 0;
  sample.question = fmt::format("what comes {} {}?", up ? "after" : "before", kNumbers[up ? number : number + 1]);
  sample.answer = kNumbers[up ? number + 1 : number];
}

constexpr std::array<Named<Draw>, 8> kTasks = {{{"colour", draw_colour},
                                                {"shape", draw_shape},
                                                {"count", draw_count},
                                                {"position", draw_position},
                                                {"digit", draw_digit},
                                                {"word", draw_word},
                                                {"caption", draw_caption},
                                                {"text", ask_without_image}}};

}  // namespace

const std::vector<std::string>& drawing_tasks() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Named<Draw>& task : kTasks) all.emplace_back(task.name);
    return all;
  }();
  return names;
}

std::vector<std::string> drawing_words() {
  std::vector<std::string> words = {"what",  "which", "where",  "how",    "many",  "is",    "are",
                                    "the",   "this",  "there",  "colour", "shape", "digit", "word",
                                    "comes", "after", "before", "a",      "an",    "user",  "assistant"};
  for (const Named<Colour>& colour : kColours) words.emplace_back(colour.name);
  for (const Named<Shape>& shape : kShapes) {
    words.emplace_back(shape.name);
    words.push_back(plural(shape.name));
  }
  words.insert(words.end(), kNumbers.begin(), kNumbers.end());
  words.insert(words.end(), kWords.begin(), kWords.end());
  for (const char* place : kPlaces)
    for (const std::string& word : split(place, ' ')) words.push_back(word);
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

DrawnSample draw_sample(std::uint64_t seed, std::uint64_t number, const std::vector<std::string>& tasks,
                        const Font* font) {
  Choices choices(seed, number);
  DrawnSample sample = {.task = choices.one_of(tasks)};
  for (const Named<Draw>& task : kTasks)
    if (task.name == sample.task) task.value(sample, choices, font);
  return sample;
}

}  // namespace braid
