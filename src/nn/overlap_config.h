#pragma once

namespace braid {

// Into how many pieces of tokens a layer cuts its work, so that one piece travels between ranks while another is
// computed. 1: the work stays whole.
struct OverlapConfig {
  int tp_pieces = 1;      // of linear maps with sequence parallelism, see nn/linear_pieces.h
  int expert_pieces = 1;  // of rows that travel to experts, see nn/moe.h
};

}  // namespace braid
