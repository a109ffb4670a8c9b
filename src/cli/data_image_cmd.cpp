// braid data image: a stored picture as the pixels that an encoder would get, before normalisation.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/data_commands.h"
#include "data/image/decode.h"
#include "data/image/resize.h"
#include "formats/safetensors.h"
#include "run/output_files.h"

namespace braid {
namespace {

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

}  // namespace

void add_data_image_command(CLI::App& data) {
  auto options = std::make_shared<ImageCommand>();
  CLI::App* command = data.add_subcommand("image", "Decode and resize pictures, and write their pixels");
  command->add_option("files", options->files, "JPEG, PNG or WebP files")->required()->type_name("FILE");
  command
      ->add_option(
          "--out", options->out,
          "a safetensors file for the tensor `pixels` (uint8, [height, width, 3]); for several pictures a folder; "
          "default: only print what they are")
      ->type_name("PATH");
  command->add_option("--width", options->width, "in pixels; default: as decoded")->check(CLI::Range(1, kLongestSide));
  command->add_option("--height", options->height, "in pixels; default: as decoded")
      ->check(CLI::Range(1, kLongestSide));
  command->add_option("--filter", options->filter, "how to resize")
      ->check(CLI::IsMember({"bicubic", "bilinear"}))
      ->capture_default_str();
  command->add_flag("--no-orient", options->no_orient, "ignore the orientation in EXIF, as Energon does");
  command->add_flag("--scaled-decode", options->scaled_decode,
                    "decode a JPEG at 1/2, 1/4 or 1/8 if it will be resized to less: faster, with other pixels");
  command->callback([options] { convert_all(*options); });
}

}  // namespace braid
