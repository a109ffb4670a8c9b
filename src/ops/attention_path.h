// The ways in which attention is computed, and those that this process has taken so far, for the log.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace braid {

enum class AttentionPath { Products, Flash, Cudnn, CudnnPacked, BraidFlash };
inline constexpr std::array kAttentionPathNames = {"matrix products", "flash", "cuDNN", "cuDNN packed",
                                                   "Braid's flash"};

inline std::array<std::atomic<bool>, kAttentionPathNames.size()> attention_paths_taken{};

inline void note_taken(AttentionPath path) { attention_paths_taken[static_cast<std::size_t>(path)] = true; }

}  // namespace braid
