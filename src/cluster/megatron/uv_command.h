// `uv run` in a command: where its program is, and which `uv sync` creates the same environment.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/megatron/text.h"

namespace braid {

struct UvRunCall {
  std::size_t program = 0;  // index of the first word after uv's options
  std::string sync{};       // "uv sync --extra vlm"; empty if it would not create the project's environment
};

std::optional<UvRunCall> uv_run_call(std::string_view text, const ShellCommand& command);

}  // namespace braid
