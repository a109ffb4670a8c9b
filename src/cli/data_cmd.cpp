// braid data: prepares, inspects and reads data sets. Here are the commands about single texts and pictures, and those
// that make data sets, of drawn pictures or of the shards of a folder.
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "data/draw/data_set.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/indexed/index_lines.h"
#include "data/shards/data_set.h"
#include "data/shards/prepare.h"
#include "data/shards/shard.h"
#include "data/text/tokenizer.h"
#include "formats/safetensors.h"
#include "run/output_files.h"

namespace braid {
namespace {

struct PrepareCommand {
  PrepareRequest request{};
  IndexLinesRequest indexed{.threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u))};
  bool without_eod = false;
  std::vector<std::string> ratios{}, patterns{}, fields{};
};

// "name:value"
std::pair<std::string, std::string> cut_at(const std::string& text, char separator, const char* option) {
  const std::size_t at = text.find(separator);
  if (at == 0 || at == text.npos)
    throw ConfigError({fmt::format("{} has no name before a '{}'", in_quotes(text), separator), option,
                       "see `braid data prepare --help`"});
  return {text.substr(0, at), text.substr(at + 1)};
}

PrepareRequest request_of(const PrepareCommand& command) {
  PrepareRequest request = command.request;
  for (const std::string& text : command.ratios) {
    const auto [name, value] = cut_at(text, ':', "--split");
    const auto ratio = parse_double(value);
    if (!ratio)
      throw ConfigError({fmt::format("{} is not a number", in_quotes(value)), "--split", "write train:0.9,val:0.1"});
    request.ratios.emplace_back(name, *ratio);
  }
  for (const std::string& text : command.patterns) request.patterns.push_back(cut_at(text, ':', "--split-parts"));
  for (const std::string& text : command.fields) request.field_map.push_back(cut_at(text, '=', "--field-map"));
  return request;
}

// Each split with a ratio gets a shard if there are as many shards.
void show_splits(const Prepared& prepared, const decltype(PrepareRequest::ratios)& ratios) {
  const double sum = sum_of<double>(ratios, [](const auto& split) { return split.second; });
  std::vector<std::string> shares;
  for (const auto& [name, ratio] : ratios) shares.push_back(fmt::format("{} {:.3g}", in_quotes(name), ratio / sum));
  if (!ratios.empty() && std::abs(sum - 1) >= 1e-6)
    fmt::print("note: the ratios add up to {:g}, so the shares are {}\n", sum, fmt::join(shares, ", "));
  const auto unwanted = std::ranges::count_if(ratios, [](const auto& split) { return split.second == 0; });
  const std::int64_t needed = std::ssize(prepared.splits) - unwanted;
  Rows rows;
  for (const PreparedSplit& split : prepared.splits)
    rows.push_back({split.name, std::to_string(split.shards), std::to_string(split.samples)});
  fmt::print("{}", format_table({"split", "shards", "samples"}, rows));
  for (const PreparedSplit& split : prepared.splits)
    if (split.shards == 0)
      fmt::print(
          stderr,
          "braid: WARNING: the split {} has 0 of {}, so it cannot be used: splits consist of whole shards; write at "
          "least {} shards, or give it a larger ratio\n",
          in_quotes(split.name), counted(prepared.shards - prepared.excluded_shards, "shard"), needed);
  std::vector<std::string> excluded;
  if (prepared.excluded_shards > 0) excluded.push_back(counted(prepared.excluded_shards, "shard"));
  if (prepared.excluded_samples > 0) excluded.push_back(counted(prepared.excluded_samples, "sample"));
  if (!excluded.empty()) fmt::print("note: the splits exclude {}\n", fmt::join(excluded, " and "));
  const auto& unused = prepared.unused_shards;
  if (unused.empty()) return;
  constexpr std::ptrdiff_t kMost = 5;
  std::vector<std::string> named;
  for (const std::string& name : unused)
    if (std::ssize(named) < kMost) named.push_back(in_quotes(name));
  fmt::print("note: {} {} to no split: {}{}\n", counted(std::ssize(unused), "shard"),
             unused.size() == 1 ? "belongs" : "belong", fmt::join(named, ", "),
             std::ssize(unused) > kMost ? fmt::format(" and {} more", std::ssize(unused) - kMost) : "");
}

void prepare_indexed(const PrepareCommand& command) {
  IndexLinesRequest request = command.indexed;
  request.lines = command.request.path;
  request.force = command.request.force;
  request.append_eod = !command.without_eod;
  if (!request.lines.ends_with(".jsonl"))
    throw misuse("--to-indexed needs JSON lines", "give a .jsonl file whose lines have a text");
  if (request.tokenizer.empty()) throw misuse("--to-indexed needs a tokenizer", "add --tokenizer PATH");
  if (!command.ratios.empty() || !command.patterns.empty() || !command.fields.empty() ||
      !command.request.sample_type.empty() || command.request.shuffle)
    throw misuse("indexed text has neither splits nor fields",
                 "leave out the other options; data.document_split divides it when it is read");
  require_writable({{"--to-indexed", request.prefix + ".bin", WrittenPath::File}});
  WorkStatus status;
  request.progress = [&](std::int64_t done, std::int64_t total) {
    status.show("tokenizing", static_cast<double>(done) / static_cast<double>(total));
  };
  const IndexedLines lines = index_lines(request);
  status.clear();
  fmt::print("{} with {} in {}.bin and .idx\n", counted(lines.documents, "document"), counted(lines.tokens, "token"),
             clean_text(request.prefix));
  if (lines.empty > 0)
    fmt::print("note: {} without text {} left out\n", counted(lines.empty, "line"), lines.empty == 1 ? "is" : "are");
}

void prepare(const PrepareCommand& command) {
  if (!command.indexed.prefix.empty()) return prepare_indexed(command);
  if (!command.indexed.tokenizer.empty() || command.without_eod || command.indexed.key != IndexLinesRequest().key)
    throw misuse("--tokenizer, --text-key and --no-eod are for indexed text", "add --to-indexed PREFIX");
  PrepareRequest request = request_of(command);
  // Paths that are missing or no data sets are refused later.
  if (request.path.ends_with(".jsonl"))
    require_writable({{"PATH", index_path(request.path), WrittenPath::File}});
  else if (is_folder(request.path))
    require_writable({{"PATH", request.path, WrittenPath::Folder}});
  WorkStatus status;
  request.progress = [&](std::int64_t done, std::int64_t total) {
    status.show("indexing shards", static_cast<double>(done) / static_cast<double>(total));
  };
  const Prepared prepared = prepare_data_set(request);
  status.clear();
  fmt::print("{} in {}; parts: {}\n", counted(prepared.samples, "sample"), counted(prepared.shards, "shard"),
             visible_text(joined(prepared.parts, ", ")));
  print_warnings(prepared.warnings);
  if (prepared.splits.empty()) return;
  show_splits(prepared, request.ratios);
  if (prepared.kept_splits)
    fmt::print("note: the splits were there already and are unchanged; --split or --split-parts replaces them\n");
  if (prepared.kept_dataset_yaml) fmt::print("note: dataset.yaml was there already and is unchanged\n");
  if (!prepared.has_key_index)
    fmt::print("note: this braid was built without SQLite, so there is no index.sqlite for look-ups by key\n");
}

void draw(const DrawRequest& request) {
  require_writable({{"FOLDER", request.folder, WrittenPath::Folder}});
  const Drawn drawn = draw_data_set(request);
  fmt::print("drew {} ({}) in {}, {}, in {}\n", counted(drawn.samples, "sample"), fmt::join(drawn.tasks, ", "),
             counted(drawn.shards, "shard"), readable_bytes(drawn.bytes), request.folder);
}

Command data_draw_command() {
  const auto o = std::make_shared<DrawRequest>();
  return {.name = "draw",
          .help = "Draw pictures with questions and answers, as a data set to train on",
          .options = {{"folder", &o->folder, "folder to write: new, or empty", kRequired},
                      {"--samples", &o->train, "samples of the split train", kDefaultShown},
                      {"--val", &o->val, "samples of the split val", kDefaultShown},
                      {"--per-shard", &o->per_shard, "samples per tar file", kDefaultShown},
                      {"--seed", &o->seed, "the same seed draws the same samples",
                       Rules{.check = WholeRange{0, kLargestSeed}, .shows_default = true}},
                      {"--tasks", &o->tasks, "kinds of samples, separated by commas; default: all",
                       Rules{.delimiter = ','}}},
          .footer = "The folder also gets a tokenizer that has a token for each word of the questions and answers.",
          .run = [o](Call&) { draw(*o); }};
}

Command data_prepare_command() {
  const auto o = std::make_shared<PrepareCommand>();
  PrepareRequest& request = o->request;
  return {
      .name = "prepare",
      .help = "Index the shards of a data set and split them",
      .options = {{"path", &request.path, "a folder of .tar files, or a .jsonl file", kRequired},
                  {"--split", &o->ratios,
                   "splits and their share of the shards, relative to the sum of all: train:0.9,val:0.1 (default: "
                   "those there are, or train:1)",
                   Rules{.delimiter = ','}},
                  {"--split-parts", &o->patterns,
                   "a split and a regular expression for its shards: 'train:part_[0-8].*'; may be repeated"},
                  {"--shuffle-tars", &request.shuffle, "shuffle the shards before --split divides them"},
                  {"--sample-type", &request.sample_type,
                   fmt::format("Energon's class for the samples: {} (default: crude samples)", sample_type_names())},
                  {"--field-map", &o->fields, "a field of the sample type and its part: image=jpg; may be repeated"},
                  {"--force", &request.force,
                   "prepare it again; keeps the splits unless --split or --split-parts is given"},
                  {"--to-indexed", &o->indexed.prefix,
                   "write the texts of a .jsonl file as PREFIX.bin and PREFIX.idx, Megatron's indexed text",
                   Rules{.value_name = "PREFIX"}},
                  {"--tokenizer", &o->indexed.tokenizer,
                   "for --to-indexed: a tokenizer.json, a sentencepiece .model, or a folder with one"},
                  {"--text-key", &o->indexed.key, "for --to-indexed: the key of the text in each line", kDefaultShown},
                  {"--no-eod", &o->without_eod, "for --to-indexed: no EOS token at the end of documents"}},
      .footer =
          "Writes an index beside each shard, and .nv-meta with counts, splits and the kind of samples. Energon reads "
          "it too.\n"
          "Example:\n"
          "  braid data prepare images --split train:0.9,val:0.1 --sample-type CaptioningSample --field-map image=jpg "
          "--field-map caption=json[text]\n"
          "  braid data prepare texts.jsonl --to-indexed text --tokenizer MODEL_DIR",
      .run = [o](Call&) { prepare(*o); }};
}

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

// Answers are flushed before each read that may wait, so that a program can send one line and read its answer.
void tokenize(const TokenizeCommand& command) {
  const Tokenizer tokenizer = load_tokenizer(command.tokenizer);
  std::string line, buffer(1 << 16, '\0');
  std::int64_t number = 0;
  const auto finish_line = [&] {
    ++number;
    try {
      const Json value = parse_line(std::exchange(line, ""), command.decode);
      const Json answer = command.decode ? Json(tokenizer.decode(value.get<std::vector<int>>(), !command.special))
                                         : Json(tokenizer.encode(value.get_ref<const std::string&>(), command.special));
      fmt::print("{}\n", answer.dump());
    } catch (const DataError& e) {
      std::fflush(stdout);
      throw DataError(fmt::format("standard input, line {}: {}", number, e.what()));
    }
  };
  for (ssize_t count; (count = read(STDIN_FILENO, buffer.data(), buffer.size())) != 0; std::fflush(stdout)) {
    if (count < 0 && errno != EINTR) throw_errno("cannot read standard input");
    for (const char c : std::string_view(buffer).substr(0, static_cast<std::size_t>(std::max<ssize_t>(count, 0))))
      if (c == '\n')
        finish_line();
      else
        line += c;
  }
  if (!line.empty()) finish_line();
}

constexpr int kLongestSide = 1 << 16;

struct ImageCommand {
  std::vector<std::string> files;
  std::string out, filter = name_of(ResizeFilter::Bicubic);
  int width = 0, height = 0;  // 0: as decoded
  bool no_orient = false, scaled_decode = false;
};

void convert(const ImageCommand& command, const std::string& path, const std::string& out) {
  std::ifstream file(path, std::ios::binary);
  if (!fs::is_regular_file(path) || !file)
    throw ConfigError(
        {fmt::format("{} cannot be read", in_quotes(path)), "FILE", "give the path of a JPEG, PNG or WebP file"});
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  const ImageHeader header = read_header(bytes, path);
  const auto result_size = [&](PixelSize own) -> PixelSize {
    return {command.width > 0 ? command.width : own.width, command.height > 0 ? command.height : own.height};
  };
  DecodeOptions options = {.orient = !command.no_orient};
  if (command.scaled_decode) options.scale_for = result_size(command.no_orient ? header.stored : header.oriented());
  Image image = decode(bytes, path, options);
  const PixelSize decoded = image.size(), wanted = result_size(decoded);
  if (wanted.pixels() > kMostPixels)
    throw ConfigError({fmt::format("{} x {} pixels are more than {}", wanted.width, wanted.height, kMostPixels),
                       "--width and --height", "give a smaller size"});
  if (wanted != decoded) image = resize(image, wanted, choice_named<ResizeFilter>(command.filter));
  if (!out.empty()) {
    make_folder_of(out);
    const TensorInfo info = {"pixels", StoredDtype::U8, {image.size().height, image.size().width, 3}};
    SafetensorsWriter writer = SafetensorsWriter::to_file(out, {info});
    writer.write(info.name, std::as_bytes(image.pixels()));
    writer.finish();
  }
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

void convert_all(const ImageCommand& command) {
  std::set<std::string> names;
  for (const std::string& path : command.files)
    if (const std::string name = fs::path(path).filename().string(); !command.out.empty() && !names.insert(name).second)
      throw ConfigError(
          {fmt::format("two files are called {}", in_quotes(name)), "FILE", "convert them into two folders"});
  for (const std::string& path : command.files)
    check_outputs({{"--out", out_for(command, path), {".safetensors"}}}, {.path = path});
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
    throw DataError(
        fmt::format("{} of {} could not be decoded", failed, counted(std::ssize(command.files), "picture")));
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
