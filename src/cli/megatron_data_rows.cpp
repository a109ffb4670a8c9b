// Flags of Megatron-LM about data sets, tokenizers, pictures and evaluation.
#include "cli/megatron_table.h"

namespace braid {
namespace {

using namespace megatron_rows;

// Reasons that several flags share.
constexpr const char* kOneDataSet =
    "data.path is one data set or metadataset; data.split and data.valid_split name its splits";
constexpr const char* kBlend = "write a metadataset, a .yaml file with weights, and give it as data.path";
constexpr const char* kTars = "data sets are tar shards, which braid data prepare has indexed";
constexpr const char* kTokenizerFile =
    "data.tokenizer is a tokenizer.json, a sentencepiece .model, or a folder with one of them";
constexpr const char* kPositions = "checkpoints contain the position in the data set";
constexpr const char* kPackedApart = "the samples of a packed sequence are independent of each other";
constexpr const char* kTokensOfPictures = "the number of a picture's tokens follows from its size, see data.pictures";
constexpr const char* kSequence = "it includes image tokens";

void add_sets(std::vector<Row>& rows) {
  rows.insert(
      rows.end(),
      {
          one_of_many("data-path", "data.path", kBlend),
          taken_switch("mock-data", "data.mock", "true"),
          {.name = "dataset-provider",
           .verdict = FlagVerdict::Rewritten,
           .values = kOne,
           .key = "data.mock",
           .value = "true",
           .only_for = "mock",
           .otherwise = "leave it out: data.path and the dataset.yaml there say how samples are read"},
          no("dataset-config", kOne, "give the data set or metadataset as data.path"),
          no("train-data-path", kMany, kOneDataSet),
          no("valid-data-path", kMany, kOneDataSet),
          no("test-data-path", kMany, kOneDataSet),
          no("data-args-path", kOne, kBlend),
          no("per-split-data-args-path", kOne, kBlend),
          no("split", kOne, "braid data prepare --split makes splits; data.split and data.valid_split name them"),
          already("data-cache-path", kOne, "the index is stored with the data set"),
          already("num-dataset-builder-threads", kOne, kTars),
          no("no-mmap-bin-files", kNone, kTars),
          no("mock-dataset-size", kOne, "the number of mock samples is unlimited"),
          already_for("external", "dataloader-type", "samples come in Energon's order"),
          already("dataloader-save", kOne, kPositions),
          already("dataloader-load", kOne, kPositions),
          taken("num-workers", "loader.num_workers"),
          taken("packing-buffer-size", "loader.packing_buffer"),
          no("packing-knapsack-algorithm", kOne, "loader.packing is greedy or even"),
          taken("shuffle-buffer-size", "loader.shuffle_buffer"),
          taken("max-samples-per-sequence", "loader.max_samples_per_sequence"),
          taken("seq-length", "data.sequence_length"),
          taken("decoder-seq-length", "data.sequence_length"),
          taken("packing-seq-length", "data.sequence_length"),
          taken("dataloader-seq-length", "data.sequence_length"),
          rewritten("encoder-seq-length", "data.sequence_length", kSequence),
          rewritten("total-seq-length", "data.sequence_length", kSequence),
          already("no-create-attention-mask-in-dataloader", kNone, "attention needs no mask"),
          already("reset-position-ids", kNone, kPackedApart),
          already("reset-attention-mask", kNone, kPackedApart),
          no("eod-mask-loss", kNone, "data.prompt_format determines which tokens are learned"),
          taken("eval-interval", "train.eval_interval"),
          taken("eval-iters", "train.eval_iterations"),
          no("skip-train", kNone, "use braid eval RECIPE --load CHECKPOINT"),
          no("online-evaluation-config", kOne, "use --eval-interval and --eval-iters"),
          already("log-validation-ppl-to-tensorboard", kNone, "always logged"),
      });
}

void add_text(std::vector<Row>& rows) {
  rows.insert(
      rows.end(),
      {
          taken("tokenizer-model", "data.tokenizer"),
          already("tokenizer-type", kOne, "the file of data.tokenizer determines this; mock samples need no tokenizer"),
          no("vocab-file", kOne, kTokenizerFile),
          no("merge-file", kOne, kTokenizerFile),
          no("tiktoken-pattern", kOne, kTokenizerFile),
          no("vocab-extra-ids", kOne, "add the tokens to tokenizer.json"),
          no("special-tokens", kMany, "add the tokens to tokenizer.json, as special ones"),
          no("image-token", kOne, "pictures are <image> in the text; model.images.token_id is its id"),
          already("pad-token-id", kOne, "padding is never learned and changes nothing"),
          already("eos-id", kOne, "the tokenizer's files name it"),
          taken("tokenizer-prompt-format", "data.prompt_format"),
          taken("image-tag-type", "data.image_tag"),
          no("force-system-message", kNone, "data.system is the system turn of conversations that have none"),
          no("prompt-path", kOne, "captions are answers without a question: put prompts into the samples"),
          already("sft", kNone, "data.prompt_format determines which tokens are learned"),
      });
}

void add_pictures(std::vector<Row>& rows) {
  rows.insert(rows.end(),
              {
                  taken_switch("dynamic-resolution", "data.pictures.fit", "dynamic"),
                  taken_switch("no-dynamic-resolution", "data.pictures.fit", "square"),
                  taken_switch("use-tiling", "data.pictures.fit", "tiles"),
                  taken_switch("use-thumbnail", "data.pictures.thumbnail", "true"),
                  taken("max-num-tiles", "data.pictures.max_tiles"),
                  taken("dynamic-resolution-min-patches", "data.pictures.min_patches"),
                  taken("dynamic-resolution-max-patches", "data.pictures.max_patches"),
                  taken("dynamic-resolution-min-side", "data.pictures.min_side"),
                  rewritten("img-h", "data.pictures.tile_side", "the side of tiles, and of pictures of one size"),
                  already("img-w", kOne, "tiles and pictures of one size are squares: see --img-h"),
                  no("image-seq-length", kOne, kTokensOfPictures),
                  no("num-image-tiles", kOne, kTokensOfPictures),
                  no("use-tile-tags", kNone, "tiles of a picture follow each other without tags"),
                  no("use-area-weighted-aspect-ratio", kNone, "tiles are chosen by the nearest aspect ratio"),
                  no("num-frames", kOne, "videos are not supported"),
              });
}

}  // namespace

void add_data_rows(std::vector<MegatronFlag>& rows) {
  add_sets(rows);
  add_text(rows);
  add_pictures(rows);
}

}  // namespace braid
