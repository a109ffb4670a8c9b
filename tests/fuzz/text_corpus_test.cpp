// The inputs that the fuzzers of text/ have found so far, run as an ordinary test.
#include "fuzz/corpus.h"
#include "fuzz/text_targets.h"

namespace braid {
namespace {

TEST(TextFuzzCorpus, TokenizersAreReadOrRefused) {
  const auto [accepted, count] = testing::run_corpus(BRAID_SOURCE_DIR, "tokenizer", testing::fuzz_tokenizer);
  EXPECT_GE(accepted, 3);
  EXPECT_GT(count, accepted);
}

TEST(TextFuzzCorpus, ChatTemplatesRenderOrAreRefused) {
  const auto [accepted, count] = testing::run_corpus(BRAID_SOURCE_DIR, "chat_template", testing::fuzz_chat_template);
  EXPECT_GE(accepted, 5);
  EXPECT_GT(count, accepted);
}

}  // namespace
}  // namespace braid
