// Rules of the repository: includes point one way, kernels wait for the one before them, and the README names only
// files that exist.
#include <gtest/gtest.h>
#include <regex>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = BRAID_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_match(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

// What each folder may include: the folders whose libraries its CMakeLists.txt names in DEPENDS, and theirs.
std::map<std::string, std::set<std::string>> folders_below() {
  std::map<std::string, std::set<std::string>> below;
  std::map<std::string, std::string> folder_of = {{"kernels", "kernels"}};
  std::istringstream list(first_match(read(kRoot / "src" / "CMakeLists.txt"), "foreach\\(folder([a-z/\\s]+)\\)"));
  static const std::regex library("braid_([a-z]+)");
  const std::sregex_iterator end;
  for (std::string folder; list >> folder;) {
    const std::string text = read(kRoot / "src" / folder / "CMakeLists.txt");
    EXPECT_TRUE(text.starts_with("# ")) << folder << "/CMakeLists.txt begins with what the folder is for";
    std::set<std::string>& may = below[folder] = {folder};
    static const std::regex depends("DEPENDS ([^)]*)\\)");
    for (std::sregex_iterator found(text.begin(), text.end(), depends); found != end; ++found) {
      const std::string names = (*found)[1];
      for (std::sregex_iterator name(names.begin(), names.end(), library); name != end; ++name) {
        const auto other = folder_of.find((*name)[1]);
        if (other != folder_of.end()) may.insert(below[other->second].begin(), below[other->second].end());
      }
    }
    folder_of[first_match(text, "braid_library\\(([a-z]+)")] = folder;
  }
  return below;
}

TEST(Layout, IncludesPointDown) {
  const std::map<std::string, std::set<std::string>> below = folders_below();
  int checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
    const std::string folder = fs::relative(entry.path().parent_path(), kRoot / "src").string();
    ASSERT_TRUE(below.contains(folder)) << folder << " is not in src/CMakeLists.txt";
    const std::string text = read(entry.path());
    static const std::regex include("#include \"([a-z/]+)/[a-z_0-9]+\\.h");
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match, ++checked) {
      const std::string other = (*match)[1];
      const bool may = other == folder || below.at(folder).contains(other);
      EXPECT_TRUE(may) << entry.path() << " includes upwards: " << match->str();
    }
  }
  EXPECT_GT(checked, 50);
}

// A unit is a header and the source file of the same name, and, if they exist, those of its kernels (x_cuda belongs to
// x).
std::string unit_of(std::string path) {
  const std::string kernels = "_cuda";
  if (path.ends_with(kernels)) path.resize(path.size() - kernels.size());
  return path;
}

TEST(Layout, UnitsDoNotNeedEachOtherInCycles) {
  std::map<std::string, std::set<std::string>> needs;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
    const std::string unit = unit_of(fs::relative(entry.path(), kRoot / "src").replace_extension().string());
    const std::string text = read(entry.path());
    static const std::regex include("#include \"([a-z_0-9/]+)\\.h\"");
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match)
      if (const std::string other = unit_of((*match)[1]); other != unit) needs[unit].insert(other);
  }
  ASSERT_GT(needs.size(), 100u);
  // Removes units that need no other remaining unit, until only cycles are left.
  for (bool removed = true; removed;) {
    removed = false;
    for (auto unit = needs.begin(); unit != needs.end();) {
      std::erase_if(unit->second, [&](const std::string& other) { return needs.count(other) == 0; });
      removed |= unit->second.empty();
      unit = unit->second.empty() ? needs.erase(unit) : std::next(unit);
    }
  }
  for (const auto& [unit, others] : needs)
    for (const std::string& other : others) ADD_FAILURE() << unit << " is in a cycle with, or needs one of, " << other;
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
  return found;
}

// Lines of a kernel before its call of wait_for_previous(), and how many such calls it has. `text` starts with its
// declaration.
struct Wait {
  int lines_before, calls;

  explicit Wait(const std::string& text) {
    const std::size_t body = text.find(") {\n"), wait = text.find("  wait_for_previous();\n", body);
    lines_before = wait == text.npos ? 0 : count(text.substr(body, wait - body), "\n");
    calls = count(text, "wait_for_previous();\n");
  }
};

// A kernel that does not wait would read what the kernel before it still writes.
TEST(Layout, KernelsWaitForThePreviousOne) {
  const std::set<std::string> prepare_barriers_first = {"attention_forward.cu", "grouped_product.cu"};
  constexpr int kDeclarations = 8;
  int checked = 0;
  for (const auto& entry : fs::directory_iterator(kRoot / "src" / "kernels")) {
    if (!entry.path().extension().string().starts_with(".cu")) continue;
    const std::string text = read(entry.path()), name = entry.path().filename().string(), kernel = "__global__";
    EXPECT_EQ(count(text, "<<<"), 0) << name << ": use launch_kernel()";
    EXPECT_EQ(count(text, " __restrict__ ") + count(text, "__ldg("), 0) << name << ": may load before the wait";
    for (std::size_t at = text.find(kernel); at != text.npos; ++checked) {
      const std::size_t next = text.find(kernel, at + 1);
      const Wait wait(text.substr(at, next - at));
      EXPECT_EQ(wait.calls, 1) << name << ": " << text.substr(at, 100);
      if (!prepare_barriers_first.contains(name)) EXPECT_LE(wait.lines_before, kDeclarations) << text.substr(at, 100);
      at = next;
    }
  }
  EXPECT_GT(checked, 50);
}

TEST(Layout, PathsInTheReadmeExist) {
  int checked = 0;
  const std::string readme = read(kRoot / "README.md");
  static const std::regex path(
      "[(`]((?:src|docs|recipes|tests|bench|tools|cmake)/[A-Za-z0-9_./-]*|[A-Z]+\\.md|LICENSE|dev)[)`]");
  for (std::sregex_iterator match(readme.begin(), readme.end(), path), end; match != end; ++match, ++checked)
    EXPECT_TRUE(fs::exists(kRoot / (*match)[1].str())) << "README.md names " << (*match)[1];
  EXPECT_GT(checked, 5);
}

}  // namespace
