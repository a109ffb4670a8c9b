// What a run or a command writes, checked before the work begins. No libtorch here.
#pragma once

#include "run/recipe.h"

namespace braid {

struct Blend;

// A folder or file that a run writes to.
struct WrittenPath {
  std::string key;  // a recipe key, or the flag
  std::string path;
  enum Kind { Folder, File } kind = Folder;
};
std::vector<WrittenPath> written_paths(const Recipe& recipe);

// Checks permissions, and tries to write as the run will; removes everything it creates for that.
std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths);
// ConfigError with all of them.
inline void require_writable(const std::vector<WrittenPath>& paths) { throw_if_any(writing_problems(paths)); }

// A file that a command writes at its end: a page, answers, statistics, pixels.
struct OutputFile {
  std::string flag;
  std::string path;                         // empty: not wanted
  std::vector<std::string_view> endings{};  // its name must have one of these
};

// The inputs of the command.
struct InputFiles {
  std::string path;                      // the recipe, metadataset or picture
  DataConfig data{};                     // its path and tokenizer
  std::shared_ptr<const Blend> blend{};  // may be none
  std::vector<std::string> others{};
};

// Reports outputs with equal paths, outputs that would replace an input, and names with a wrong ending.
std::vector<Problem> output_problems(const std::vector<OutputFile>& outputs, const InputFiles& inputs);
// The outputs that are wanted, for writing_problems().
std::vector<WrittenPath> written_paths(const std::vector<OutputFile>& outputs);
// ConfigError with all of output_problems() and writing_problems().
void check_outputs(const std::vector<OutputFile>& outputs, const InputFiles& inputs);

// Missing folders are created.
void make_folder_of(const std::string& file);
void write_output(const std::string& file, std::string_view text);

}  // namespace braid
