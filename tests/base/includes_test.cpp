// Files include what they use and not every file sees, themselves or through a header of Braid. Two compilers do not
// find the same omissions: clang's precompiled header declares all of libtorch, and the headers of each standard
// library include different others. This check reads text, so that it covers all files in a second. It knows names, not
// types: what a file does with a type that is only declared is found by `CXX=g++ ./dev build`.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = BRAID_SOURCE_DIR;

struct Declared {
  const char *header, *names;  // a header that ends in / stands for every header of that folder
};

// Not listed: what every file sees, see braid_standard_headers in cmake/BraidTargets.cmake.
const Declared kStandard[] = {
    {"bitset", "bitset"},
    {"compare", "partial_ordering strong_ordering weak_ordering"},
    {"future", "async future packaged_task promise shared_future"},
    {"iomanip", "get_time put_time setfill setprecision setw"},
    {"iostream", "cerr cin cout"},
    {"list", "list"},
    {"numbers", "numbers"},
    {"ostream", "endl ostream"},
    {"queue", "priority_queue queue"},
    {"regex", "regex regex_match regex_replace regex_search smatch sregex_iterator"},
    {"shared_mutex", "shared_lock shared_mutex"},
    {"stdexcept", "domain_error invalid_argument length_error logic_error out_of_range overflow_error runtime_error"},
};

// Functions at::f() that are not in ATen/ops/f.h, and other names. Not listed: types that at::Tensor's header declares.
const Declared kLibtorch[] = {
    {"ATen/", "at::elementSize at::isFloatingType at::toString at::typeMetaToScalarType"},
    {"ATen/Context.h", "at::globalContext at::manual_seed"},
    {"ATen/DeviceAccelerator.h", "at::accelerator"},
    {"ATen/OpMathType.h", "at::toOpMathType"},
    {"ATen/Parallel.h", "at::get_num_threads at::parallel_for at::set_num_threads"},
    {"ATen/core/grad_mode.h", "at::AutoGradMode at::GradMode at::NoGradGuard"},
    {"ATen/record_function.h",
     "at::CallbackHandle at::ObserverContext at::RecordFunction at::RecordFunctionCallback at::addThreadLocalCallback "
     "at::hasThreadLocalCallbacks at::removeCallback"},
    {"c10/core/DeviceGuard.h", "c10::DeviceGuard"},
    {"c10/util/accumulate.h", "c10::multiply_integers"},
    {"torch/csrc/cuda/nccl.h", "torch::cuda"},
    {"torch/cuda.h", "torch::cuda"},
};

// Headers that always include these others.
const Declared kIncludes[] = {
    {"ATen/ATen.h", "ATen/Context.h"},
    {"gmock/", "ostream"},
    {"gtest/", "ostream"},
    {"iostream", "ostream"},
};

std::set<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The text without comments and literals. A quote after a digit or a letter separates digits.
std::string code_of(std::string_view text) {
  std::string code;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (text.substr(at, 2) == "//") {
      at = text.find('\n', at);
    } else if (text.substr(at, 2) == "/*") {
      at = text.find("*/", at) + 2;
    } else if (c == '"' && code.ends_with('R')) {
      const std::string end = fmt::format("){}\"", text.substr(at + 1, text.find('(', at) - at - 1));
      at = text.find(end, at) + end.size();
    } else if (c == '"' || (c == '\'' && !(at > 0 && is_word(text[at - 1])))) {
      for (++at; text[at] != c; ++at) at += text[at] == '\\';
      ++at;
    } else {
      code += c;
      ++at;
    }
  }
  return code;
}

struct File {
  std::set<std::string> includes{}, own_includes{};  // <...>, "..."
  std::set<std::string> names{}, calls{};            // std::sort, at::Tensor; at::f where ( follows
};

File parse(const std::string& text) {
  File file;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const std::string directive = "#include "; line.starts_with(directive)) {
      const std::string name = line.substr(directive.size() + 1);
      (line[directive.size()] == '<' ? file.includes : file.own_includes)
          .insert(name.substr(0, name.find_first_of(">\"")));
    }
  const std::string code = code_of(text);
  for (const std::string space : {"std::", "at::", "c10::", "torch::", "fmt::"})
    for (std::size_t at = code.find(space); at != code.npos; at = code.find(space, at + 1)) {
      if (at > 0 && (is_word(code[at - 1]) || code[at - 1] == ':')) continue;
      std::size_t end = at + space.size();
      while (end < code.size() && is_word(code[end])) ++end;
      file.names.insert(code.substr(at, end - at));
      if (space == "at::" && code.substr(end, 1) == "(") file.calls.insert(code.substr(at, end - at));
    }
  return file;
}

std::map<std::string, File> parse_all() {
  std::map<std::string, File> files;
  for (const char* top : {"src", "tests", "bench"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top))
      if (entry.path().extension() == ".h" || entry.path().extension() == ".cpp") {
        std::ifstream stream(entry.path());
        files[fs::relative(entry.path(), kRoot).string()] = parse({std::istreambuf_iterator<char>(stream), {}});
      }
  return files;
}

bool has(const std::set<std::string>& includes, const std::string& header) {
  if (!header.ends_with('/')) return includes.contains(header);
  const auto first = includes.lower_bound(header);
  return first != includes.end() && first->starts_with(header);
}

class Includes {
 public:
  explicit Includes(const std::map<std::string, File>& files) : files_(files) {}

  // Headers of other projects that the file includes, itself or through headers of Braid.
  std::set<std::string> of(const std::string& path) {
    seen_ = {path};
    found_.clear();
    collect(path);
    for (const auto& [header, others] : kIncludes)
      if (has(found_, header)) found_.merge(words(others));
    return found_;
  }

 private:
  void collect(const std::string& path) {
    const File& file = files_.at(path);
    found_.insert(file.includes.begin(), file.includes.end());
    for (const std::string& name : file.own_includes)
      for (const std::string& folder :
           {std::string("src"), std::string("tests"), fs::path(path).parent_path().string()})
        if (const std::string other = folder + "/" + name; files_.contains(other) && seen_.insert(other).second)
          collect(other);
  }

  const std::map<std::string, File>& files_;
  std::set<std::string> seen_, found_;
};

// The headers of which a file needs one because of the name; none if it needs no particular one.
std::set<std::string> needed_for(const std::string& name, const File& file) {
  static const auto known = [] {
    std::map<std::string, std::set<std::string>> headers;
    for (const auto& [header, names] : kStandard)
      for (const std::string& each : words(names)) headers["std::" + each].insert(header);
    for (const auto& [header, names] : kLibtorch)
      for (const std::string& each : words(names)) headers[each].insert(header);
    return headers;
  }();
  if (const auto found = known.find(name); found != known.end()) return found->second;
  std::string op = name.substr(name.rfind(':') + 1);
  if (!file.calls.contains(name) || std::isupper(static_cast<unsigned char>(op[0]))) return {};  // no call, or a type
  for (const std::string_view form : {"_out", "_"})  // add_out() and add_() are in add.h
    if (op.ends_with(form)) op.resize(op.size() - form.size());
  return {"ATen/ops/" + op + ".h", "ATen/ATen.h"};
}

// path: name needs <header>
std::vector<std::string> omissions(const std::map<std::string, File>& files) {
  std::vector<std::string> found;
  Includes includes(files);
  for (const auto& [path, file] : files) {
    const std::set<std::string> included = includes.of(path);
    for (const std::string& name : file.names) {
      std::set<std::string> headers = needed_for(name, file);
      // Libtorch brings a later fmt, which declares it there.
      if (name == "fmt::join" && has(included, "ATen/")) headers = {"fmt/ranges.h"};
      if (headers.empty() || std::ranges::any_of(headers, [&](const std::string& each) { return has(included, each); }))
        continue;
      found.push_back(fmt::format("{}: {} needs <{}>", path, name, fmt::join(headers, "> or <")));
    }
  }
  return found;
}

TEST(Includes, DeclareWhatFilesUse) {
  const std::map<std::string, File> files = parse_all();
  EXPECT_GT(files.size(), 500u);
  for (const std::string& each : omissions(files)) ADD_FAILURE() << each;
}

TEST(Includes, OmissionsAreFound) {
  const auto check = [](const std::string& text, const std::string& header = "#include <ATen/core/Tensor.h>\n") {
    return omissions({{"src/a/x.cpp", parse("#include \"a/x.h\"\n" + text)}, {"src/a/x.h", parse(header)}});
  };
  EXPECT_THAT(check("at::add_out(x, y); at::Tensor(x); x.add(y); // std::list\n \"std::list\" 1'000 'a' std::move(x)"),
              ::testing::ElementsAre("src/a/x.cpp: at::add_out needs <ATen/ATen.h> or <ATen/ops/add.h>"));
  EXPECT_THAT(check("#include <ATen/ops/add.h>\nat::add_out(x, y);"), ::testing::IsEmpty());
  EXPECT_THAT(check("at::NoGradGuard guard;"),
              ::testing::ElementsAre("src/a/x.cpp: at::NoGradGuard needs <ATen/core/grad_mode.h>"));
  EXPECT_THAT(check("#include <fmt/format.h>\nfmt::join(x, y)"),
              ::testing::ElementsAre("src/a/x.cpp: fmt::join needs <fmt/ranges.h>"));
  EXPECT_THAT(check("std::list x;", "#include <queue>"), ::testing::ElementsAre("src/a/x.cpp: std::list needs <list>"));
  EXPECT_THAT(check("R\"(\" std::regex)\" 'x' std::list(x)", "#include <list>"), ::testing::IsEmpty());
}

}  // namespace
