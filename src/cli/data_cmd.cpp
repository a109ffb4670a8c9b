// braid data: prepares, inspects and reads data sets. Here are the commands about single texts and pictures.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/data_call.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/text/tokenizer.h"
#include "formats/safetensors.h"
#include "run/output_files.h"

namespace braid {
namespace {

using Json = nlohmann::json;

struct TokenizeCommand {
  std::string tokenizer;
  bool decode = false, special = false;
};

Json parse_line(const std::string& line, bool decode) {
  Json value;
  try {
    value = Json::parse(with_valid_utf8(line));
  } catch (const Json::exception& e) {
    const std::string why = json_error(e.what()), of_one_line = "line 1, ";
    throw DataError(fmt::format("not JSON: {}", why.substr(why.starts_with(of_one_line) ? of_one_line.size() : 0)));
  }
  bool fits = decode ? value.is_array() : value.is_string();
  if (decode && fits)
    for (const Json& id : value) fits &= id.is_number_integer() && id >= 0 && id < (1 << 30);
  if (!fits) throw DataError(decode ? "not a JSON array of token ids" : "not a JSON string");
  return value;
}

std::string answer(const Tokenizer& tokenizer, const TokenizeCommand& command, const std::string& line) {
  const Json value = parse_line(line, command.decode);
  if (!command.decode)
    return fmt::format("[{}]", fmt::join(tokenizer.encode(value.get_ref<const std::string&>(), command.special), ","));
  return Json(tokenizer.decode(value.get<std::vector<int>>(), !command.special)).dump();
}

// Answers are flushed before each read that may wait, so that a program can send one line and read its answer.
void tokenize(const TokenizeCommand& command) {
  const Tokenizer tokenizer = load_tokenizer(command.tokenizer);
  std::string line;
  std::int64_t number = 0;
  const auto finish_line = [&] {
    ++number;
    try {
      fmt::print("{}\n", answer(tokenizer, command, line));
    } catch (const DataError& e) {
      std::fflush(stdout);
      throw DataError(fmt::format("standard input, line {}: {}", number, e.what()));
    }
    line.clear();
  };
  std::vector<char> buffer(1 << 16);
  while (true) {
    std::fflush(stdout);
    const ssize_t count = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("cannot read standard input");
    if (count == 0) break;
    for (std::string_view rest(buffer.data(), static_cast<std::size_t>(count)); !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line += rest.substr(0, end);
      if (end == std::string_view::npos) break;
      finish_line();
      rest.remove_prefix(end + 1);
    }
  }
  if (!line.empty()) finish_line();
}

namespace fs = std::filesystem;

constexpr int kLongestSide = 1 << 16;

struct ImageCommand {
  std::vector<std::string> files;
  std::string out, filter = "bicubic";
  int width = 0, height = 0;  // 0: as decoded
  bool no_orient = false, scaled_decode = false;
};

std::vector<std::uint8_t> bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!fs::is_regular_file(path) || !file)
    throw ConfigError(
        {fmt::format("{} cannot be read", in_quotes(path)), "FILE", "give the path of a JPEG, PNG or WebP file"});
  return {std::istreambuf_iterator<char>(file), {}};
}

PixelSize result_size(const ImageCommand& command, PixelSize decoded) {
  return {command.width > 0 ? command.width : decoded.width, command.height > 0 ? command.height : decoded.height};
}

void check_size(PixelSize wanted) {
  if (wanted.pixels() > kMostPixels)
    throw ConfigError({fmt::format("{} x {} pixels are more than {}", wanted.width, wanted.height, kMostPixels),
                       "--width and --height", "give a smaller size"});
}

void write_pixels(const std::string& path, const Image& image) {
  make_folder_of(path);
  const TensorInfo info = {"pixels", StoredDtype::U8, {image.size().height, image.size().width, 3}};
  SafetensorsWriter writer = SafetensorsWriter::to_file(path, {info});
  writer.write(info.name, std::as_bytes(image.pixels()));
  writer.finish();
}

void convert(const ImageCommand& command, const std::string& path, const std::string& out) {
  const std::vector<std::uint8_t> bytes = bytes_of_file(path);
  const ImageHeader header = read_header(bytes, path);
  DecodeOptions options = {.orient = !command.no_orient};
  if (command.scaled_decode)
    options.scale_for = result_size(command, command.no_orient ? header.stored : header.oriented());
  Image image = decode(bytes, path, options);
  const PixelSize decoded = image.size(), wanted = result_size(command, decoded);
  check_size(wanted);
  if (wanted != decoded)
    image = resize(image, wanted, command.filter == "bicubic" ? ResizeFilter::Bicubic : ResizeFilter::Bilinear);
  if (!out.empty()) write_pixels(out, image);
  fmt::print("{}: {} of {} x {}, orientation {}{}, {} x {} pixels{}\n", clean_text(path), name_of(header.format),
             header.stored.width, header.stored.height, header.orientation,
             command.no_orient && header.orientation != 1 ? " (not applied)" : "", wanted.width, wanted.height,
             out.empty() ? "" : " in " + clean_text(out));
}

// One file is written to --out itself; several into the folder --out, with the name of each picture.
std::string out_for(const ImageCommand& command, const std::string& path) {
  if (command.out.empty() || (command.files.size() == 1 && !fs::is_directory(command.out))) return command.out;
  return (fs::path(command.out) / fs::path(path).filename()).string() + ".safetensors";
}

void check_names(const ImageCommand& command) {
  std::vector<std::string> names;
  for (const std::string& path : command.files) names.push_back(fs::path(path).filename().string());
  std::sort(names.begin(), names.end());
  if (const auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end())
    throw ConfigError(
        {fmt::format("two files are called {}", in_quotes(*twin)), "FILE", "convert them into two folders"});
}

void check_out(const ImageCommand& command) {
  if (command.out.empty()) return;
  check_names(command);
  for (const std::string& path : command.files)
    check_outputs({{"--out", out_for(command, path), {".safetensors"}}}, {.path = path});
}

void convert_all(const ImageCommand& command) {
  check_out(command);
  std::size_t failed = 0;
  for (const std::string& path : command.files) {
    try {
      convert(command, path, out_for(command, path));
    } catch (const DataError& e) {
      if (command.files.size() == 1) throw;
      fmt::print(stderr, "braid: {}\n", visible_text(e.what()));
      ++failed;
    }
  }
  if (failed > 0)
    throw DataError(fmt::format("{} of {} could not be decoded", failed,
                                counted(static_cast<std::int64_t>(command.files.size()), "picture")));
}

Command tokenize_command() {
  const auto o = std::make_shared<TokenizeCommand>();
  return {.name = "tokenize",
          .help = "Turn texts into token ids, or back",
          .options = {{"tokenizer", &o->tokenizer, "a tokenizer.json, a sentencepiece .model, or a folder with one",
                       Rules{.value_name = "TOKENIZER", .required = true}},
                      {"--decode", &o->decode, "read arrays of ids, print texts"},
                      {"--special", &o->special, "add the special tokens; with --decode: print them"}},
          .footer =
              "Reads one JSON string per line from standard input and prints one JSON array of ids per line:\n"
              "  echo '\"Hello\"' | braid data tokenize MODEL_DIR\n"
              "An invalid line ends the command with an error that has its number.",
          .run = [o](Call&) { tokenize(*o); }};
}

Command image_command() {
  const auto o = std::make_shared<ImageCommand>();
  return {
      .name = "image",
      .help = "Decode and resize pictures, and write their pixels",
      .options =
          {{"files", &o->files, "JPEG, PNG or WebP files", Rules{.value_name = "FILE", .required = true}},
           {"--out", &o->out,
            "a safetensors file for the tensor `pixels` (uint8, [height, width, 3]); for several pictures a folder; "
            "default: only print what they are",
            Rules{.value_name = "PATH"}},
           {"--width", &o->width, "in pixels; default: as decoded", Rules{.check = WholeRange{1, kLongestSide}}},
           {"--height", &o->height, "in pixels; default: as decoded", Rules{.check = WholeRange{1, kLongestSide}}},
           {"--filter", &o->filter, "how to resize",
            Rules{.check = OneOf{{"bicubic", "bilinear"}}, .shows_default = true}},
           {"--no-orient", &o->no_orient, "ignore the orientation in EXIF, as Energon does"},
           {"--scaled-decode", &o->scaled_decode,
            "decode a JPEG at 1/2, 1/4 or 1/8 if it will be resized to less: faster, with other pixels"}},
      .run = [o](Call&) { convert_all(*o); }};
}

}  // namespace

Command data_command() {
  return {.name = "data",
          .help = "Prepare, inspect and read data sets",
          .subcommands = {tokenize_command(), image_command(), data_draw_command(), data_prepare_command(),
                          data_order_command(), data_pack_command(), data_inspect_command(), data_bench_command()}};
}

}  // namespace braid
