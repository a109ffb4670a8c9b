#include "data/draw/data_set.h"
#include <nlohmann/json.hpp>
#include <numbers>
#include "base/error.h"
#include "base/files.h"
#include "base/philox.h"
#include "base/strings.h"
#include "data/image/decode.h"
#include "data/shards/prepare.h"
#include "data/shards/shard.h"
#include "data/text/unicode.h"
#include "formats/atomic_file.h"

#ifdef BRAID_HAS_FREETYPE
#include <ft2build.h>
#include FT_FREETYPE_H
#endif

namespace braid {
namespace {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
};

// Whether a shape of radius 1 around the origin covers a point; y points down.
using Shape = bool (*)(double x, double y);

// Centre and half of the width, in pixels.
struct Spot {
  double x = 0, y = 0, radius = 0;
};

// Shapes have smooth edges; letters come from a font of the system.
class Canvas {
 public:
  Canvas(PixelSize size, Colour background) : image_(size) {
    for (int y = 0; y < size.height; ++y)
      for (int x = 0; x < size.width; ++x) mix(x, y, background, 1);
  }

  const Image& image() const { return image_; }
  Image take() { return std::move(image_); }

  void fill(Shape shape, const Spot& spot, Colour colour) {
    constexpr int kSubpixels = 4;  // per side: coverage is counted on this grid
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

  // Mixes the colour into the image where the text covers it; its top left corner is at (x, y).
  void stamp(const RenderedText& text, int x, int y, Colour colour) {
    for (int row = std::max(0, -y); row < std::min(text.size.height, image_.size().height - y); ++row)
      for (int column = std::max(0, -x); column < std::min(text.size.width, image_.size().width - x); ++column)
        mix(x + column, y + row, colour, text.coverage[row * text.size.width + column] / 255.0);
  }

 private:
  void mix(int x, int y, Colour colour, double share) {
    std::uint8_t* pixel = image_.row(y) + 3 * x;
    const std::array<std::uint8_t, 3> wanted = {colour.red, colour.green, colour.blue};
    for (std::size_t c = 0; c < 3; ++c)
      pixel[c] =
          static_cast<std::uint8_t>(std::lround(share >= 1 ? wanted[c] : pixel[c] + share * (wanted[c] - pixel[c])));
  }

  Image image_;
};

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

constexpr std::array<Named<Shape>, 8> kShapes = {{
    {"circle", [](double x, double y) { return std::hypot(x, y) <= 1; }},
    {"square", [](double x, double y) { return std::max(std::abs(x), std::abs(y)) <= 0.9; }},
    {"triangle", [](double x, double y) { return y <= 0.9 && std::abs(x) <= 0.5 * (y + 0.95); }},
    {"diamond", [](double x, double y) { return std::abs(x) / 0.7 + std::abs(y) <= 1; }},
    {"cross",
     [](double x, double y) {
       return std::max(std::abs(x), std::abs(y)) <= 1 && std::min(std::abs(x), std::abs(y)) <= 0.3;
     }},
    {"ring", [](double x, double y) { return std::hypot(x, y) <= 1 && std::hypot(x, y) >= 0.55; }},
    {"star",  // of five points: the limit falls linearly between the directions of points and of notches
     [](double x, double y) {
       const double fifth = 2 * std::numbers::pi / 5, angle = std::atan2(x, -y) + 2 * std::numbers::pi;
       const double from_point = std::abs(std::remainder(angle, fifth)) / (fifth / 2);
       return std::hypot(x, y) <= 1 - 0.6 * from_point;
     }},
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

std::string plural(const std::string& shape) { return shape + (shape == "cross" ? "es" : "s"); }

// Draws the tasks that show shapes.
void draw_shapes(DrawnSample& sample, Choices& choices) {
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const PixelSize size = canvas.image().size();
  const Named<Shape>& shape = choices.one_of(kShapes);
  if (sample.task == "position") {
    const std::size_t cell = choices.below(kPlaces.size());
    canvas.fill(shape.value, cell_spot(size, cell, choices), choices.one_of(kColours).value);
    sample.question = fmt::format("where is the {}?", shape.name);
    sample.answer = kPlaces[cell];
    sample.image = canvas.take();
    return;
  }
  const Named<Colour>& colour = choices.one_of(kColours);
  if (sample.task == "count") {
    std::array<std::size_t, 9> cells = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    for (std::size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[choices.below(i)]);
    const std::size_t count = 1 + choices.below(9);
    for (std::size_t i = 0; i < count; ++i) canvas.fill(shape.value, cell_spot(size, cells[i], choices), colour.value);
    sample.question = fmt::format("how many {} are there?", plural(shape.name));
    sample.answer = kNumbers[count];
  } else {
    const double radius = std::min(size.width, size.height) * choices.uniform(0.4, 0.45);
    const Spot middle = {size.width / 2.0 + choices.uniform(-1, 1), size.height / 2.0 + choices.uniform(-1, 1), radius};
    canvas.fill(shape.value, middle, colour.value);
    const bool has_vowel = std::string_view("aeiou").find(colour.name[0]) != std::string_view::npos;
    sample.question = sample.task == "colour"  ? fmt::format("what colour is the {}?", shape.name)
                      : sample.task == "shape" ? fmt::format("which shape is {}?", colour.name)
                                               : "";
    sample.answer = sample.task == "colour"  ? colour.name
                    : sample.task == "shape" ? shape.name
                                             : fmt::format("{} {} {}", has_vowel ? "an" : "a", colour.name, shape.name);
  }
  sample.image = canvas.take();
}

void write_text(const std::string& text, DrawnSample& sample, Choices& choices, const Font& font) {
  BRAID_CHECK(font, "a font for '{}'", text);
  Canvas canvas(choices.one_of(kSizes), background(choices));
  const auto [width, height] = canvas.image().size();
  // The text becomes as large as it fits.
  int letter_height = height * 3 / 4;
  RenderedText rendered = font(text, letter_height);
  while (letter_height > 4 && (rendered.size.width > width - 2 || rendered.size.height > height - 2))
    rendered = font(text, --letter_height);
  const auto place = [&](int room) { return std::max(0, room / 2 + static_cast<int>(choices.below(3)) - 1); };
  const int x = place(width - rendered.size.width);
  canvas.stamp(rendered, x, place(height - rendered.size.height), kInk);
  sample.image = canvas.take();
}

// All words of the questions, the answers and the turns around them.
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

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostSamples = 100'000'000;

std::vector<std::string> tasks_of(const DrawRequest& request, bool has_font) {
  std::vector<std::string> tasks;
  for (const std::string& task : request.tasks) {
    if (!contains(drawing_tasks(), task))
      throw ConfigError({fmt::format("there is no task '{}'", task), "--tasks",
                         fmt::format("tasks are {}", joined(drawing_tasks(), ", "))});
    if (!contains(tasks, task)) tasks.push_back(task);
  }
  if (tasks.empty())
    for (const std::string& task : drawing_tasks())
      if (has_font || (task != "digit" && task != "word")) tasks.push_back(task);
  return tasks;
}

std::string record_of(const DrawnSample& sample) {
  Json turns = Json::array();
  const std::string asked = (sample.image ? "<image>\n" : "") + sample.question;
  turns.push_back({{"role", "user"}, {"content", asked.empty() ? " " : asked}});
  turns.push_back({{"role", "assistant"}, {"content", sample.answer}});
  return Json{{"task", sample.task}, {"conversations", turns}}.dump();
}

constexpr int kImageId = 511;  // where the tiny models expect it

Json special(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// A byte-level tokenizer.json: all bytes, and the words as single tokens, which are taken whole (ignore_merges), so it
// needs no merges; turns of chatml, and <image>.
std::string drawing_tokenizer(const std::vector<std::string>& words) {
  std::vector<std::string> letters(256);  // that stand for the bytes
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    append_byte_level(letters[byte], {&letter, 1});
  }
  Json vocab = Json::object(), added = Json::array();
  int next = 0;
  for (const char* token : {"<pad>", "<|im_start|>", "<|im_end|>"}) added.push_back(special(next++, token));
  for (const std::string& letter : letters) vocab[letter] = next++;
  const std::string& space = letters[' '];
  for (const std::string& word : words)
    for (const std::string& token : {space + word, word})
      if (!vocab.contains(token)) vocab[token] = next++;
  BRAID_CHECK(next <= kImageId, "{} tokens of words and bytes", next);
  added.push_back(special(kImageId, "<image>"));
  for (const Json& token : added) vocab[token["content"].get<std::string>()] = token["id"];
  Json tokenizer = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
              "vocab": {}, "merges": []}})");
  tokenizer["added_tokens"] = std::move(added);
  tokenizer["model"]["vocab"] = std::move(vocab);
  return tokenizer.dump(1);
}

}  // namespace

DrawnSample draw_sample(std::uint64_t seed, std::uint64_t number, const std::vector<std::string>& tasks,
                        const Font& font) {
  Choices choices(seed, number);
  DrawnSample sample = {.task = choices.one_of(tasks)};
  if (sample.task == "digit") {
    const std::size_t digit = choices.below(10);
    sample.question = "which digit is this?";
    sample.answer = kNumbers[digit];
    write_text(std::to_string(digit), sample, choices, font);
  } else if (sample.task == "word") {
    sample.question = "which word is this?";
    sample.answer = choices.one_of(kWords);
    write_text(sample.answer, sample, choices, font);
  } else if (sample.task == "text") {
    const std::size_t from = choices.below(9);
    const bool up = choices.below(2) == 0;
    sample.question = fmt::format("what comes {} {}?", up ? "after" : "before", kNumbers[up ? from : from + 1]);
    sample.answer = kNumbers[up ? from + 1 : from];
  } else {
    draw_shapes(sample, choices);
  }
  return sample;
}

#ifdef BRAID_HAS_FREETYPE
namespace {

// Glyphs are rendered twice: first to find the rectangle that all of them cover together.
RenderedText render(FT_Face face, const std::string& text, int height) {
  FT_Set_Pixel_Sizes(face, 0, static_cast<FT_UInt>(height * 4 / 3));  // capitals take about 3/4 of the size
  const auto for_each_glyph = [&](const auto& visit) {
    int pen = 0;
    for (const char letter : text) {
      if (FT_Load_Char(face, static_cast<unsigned char>(letter), FT_LOAD_RENDER | FT_LOAD_NO_HINTING) != 0) continue;
      const FT_GlyphSlot slot = face->glyph;
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
        std::uint8_t& covered = rendered.coverage[(y - top + row) * rendered.size.width + x - left + column];
        covered = std::max(covered, bitmap.buffer[row * bitmap.pitch + column]);
      }
  });
  return rendered;
}

}  // namespace

Font usual_font() {
  for (const char* path :
       {"/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "/usr/share/fonts/truetype/liberation/LiberationSans-Bold.ttf"}) {
    if (!fs::exists(path)) continue;
    FT_Library library = nullptr;
    FT_Face face = nullptr;
    if (FT_Init_FreeType(&library) != 0 || FT_New_Face(library, path, 0, &face) != 0)
      throw ConfigError({fmt::format("cannot read the font '{}'", path), "", "install the package fonts-dejavu-core"});
    const auto close = [library](FT_Face open) {
      FT_Done_Face(open);
      FT_Done_FreeType(library);
    };
    return [font = std::shared_ptr<FT_FaceRec_>(face, close)](const std::string& text, int height) {
      return render(font.get(), text, height);
    };
  }
  return nullptr;
}
#else
Font usual_font() { return nullptr; }
#endif

Drawn draw_data_set(const DrawRequest& request) {
  std::error_code ignored;
  const std::string mark = request.folder + "/" + kUnfinishedMark;
  if (is_there(request.folder) && !is_folder(request.folder))
    throw ConfigError({fmt::format("'{}' is a file", request.folder), "command line", "give a new folder"});
  if (is_there(request.folder) && !fs::is_empty(request.folder, ignored))
    throw ConfigError(
        {fmt::format("'{}' {}", request.folder, is_there(mark) ? "has a drawing that was interrupted" : "is not empty"),
         "command line", "remove the folder, or give a new one"});
  for (const auto& [option, samples] :
       {std::pair("--samples", request.train), {"--val", request.val}, {"--per-shard", request.per_shard}})
    if (samples < 1 || samples > kMostSamples)
      throw ConfigError({fmt::format("{} {} must be from 1 to {}", option, samples, kMostSamples), option,
                         "give another number of samples"});
  const Font font = usual_font();
  Drawn drawn = {.tasks = tasks_of(request, font != nullptr)};
  fs::create_directories(request.folder);
  write_file(mark, "");

  std::uint64_t number = 0;
  for (const auto& [split, samples] :
       {std::pair<std::string, std::int64_t>{"train", request.train}, {"val", request.val}})
    for (std::int64_t begin = 0; begin < samples; begin += request.per_shard) {
      std::string archive;
      for (std::int64_t i = begin; i < std::min(samples, begin + request.per_shard); ++i, ++number, ++drawn.samples) {
        const DrawnSample sample = draw_sample(request.seed, number, drawn.tasks, font);
        const std::string key = fmt::format("{:07d}", number);
        if (sample.image) add_tar_member(archive, key + ".png", encode_png(*sample.image));
        add_tar_member(archive, key + ".json", record_of(sample));
      }
      archive += tar_end_blocks();
      drawn.bytes += std::ssize(archive);
      write_file(fmt::format("{}/{}_{:04d}.tar", request.folder, split, drawn.shards++), archive);
    }
  fs::create_directories(request.folder + "/tokenizer");
  write_file(request.folder + "/tokenizer/tokenizer.json", drawing_tokenizer(drawing_words()));
  const Json settings = {
      {"eos_token", "<|im_end|>"},
      {"pad_token", "<pad>"},
      {"chat_template",
       "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
       "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}};
  write_file(request.folder + "/tokenizer/tokenizer_config.json", settings.dump(1) + "\n");
  prepare_data_set(
      {.path = request.folder, .patterns = {{"train", "train_.*"}, {"val", "val_.*"}}, .finishes_writing = true});
  fs::remove(mark);
  return drawn;
}

}  // namespace braid
