// How lines look: prefixes, steps of a training, encodings, wrapped lines. One row of a table is one format, as the
// framework named there writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"
#include "cluster/doctor/notes.h"
#include "cluster/lines/log_source.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using ::testing::HasSubstr;
using testing::kNone;
using testing::kTraceback;
using testing::slug_of;
using testing::with_prefix;

TEST(PrefixTable, ATracebackIsWholeBehindAnyOfThem) {
  struct Case {
    const char* prefix;
    int rank;
  };
  for (const Case& c : {Case{"[rank3]: ", 3},
                        {"[rank3]:", 3},
                        {"[Rank 3] ", 3},
                        {"[RANK 3] ", 3},
                        {"[rank: 3] ", 3},
                        {"[rank=3] ", 3},
                        {"[rank 3/8] ", 3},
                        {"rank3: ", 3},
                        {"Rank 3: ", 3},
                        {"rank=3 ", 3},
                        {"mpirank:3 ", 3},
                        {"mpirank: 3 ", 3},
                        {"global_rank=3 ", 3},
                        {"(rank 3) ", 3},
                        {"3: ", 3},
                        {"[3] ", 3},
                        {"[1,3]<stderr>:", 3},
                        {"[prterun-n1-4242@1,3]<stderr>: ", 3},
                        {"[3]<stderr>:", 3},
                        {"Fri Sep 11 07:07:20 2026[3]<stderr>:", 3},
                        {"[n1:rank3] ", 3},
                        {"[process 3] ", 3},
                        {"[default3]:", 3},
                        {"[trainer3]:", 3},
                        {"[gpu3] ", 3},
                        {"[n1:3/8] ", 3},
                        {"[n1:mpi_rank_3] ", 3},
                        {"(3/8) ", 3},
                        {"[Worker 3] ", 3},
                        {"r3: ", 3},
                        {"[2026-11-15 10:00:00 rank3] ", 3},
                        {"(VllmWorker rank=3 pid=4242) ", 3},
                        {"(worker1, rank=3, pid=2211, ip=10.0.0.5) ", 3},
                        {"2026-11-15 10:00:00,123 - ERROR - rank 3 - ", 3},
                        {"[2026-11-15 10:00:00,123] [ERROR] [engine.py:12:step] [Rank 3] ", 3},
                        {"2026-11-15 10:00:00,123 | ERROR | rank=3 | ", 3},
                        {"2026-11-15 10:00:00,123: rank3[2088][MainThread]: ERROR: ", 3},
                        {"worker-1: [rank8]: ", 8},
                        {"(RayTrainWorker pid=4242, ip=10.0.0.2) ", kNone},
                        {"\x1b[36m(RayTrainWorker pid=4242)\x1b[0m ", kNone},
                        {"[pod/train-worker-3/pytorch] ", kNone},
                        {"train-worker-3 pytorch ", kNone},
                        {"worker-3  | ", kNone},
                        {"node3: ", kNone},
                        {"10.0.0.3: ", kNone},
                        {"2026-11-15T10:00:00.123456789Z stderr F ", kNone},
                        {"2026-11-15 10:00:00.123 | ERROR    | train:main:12 - ", kNone},
                        {"ERROR:root:", kNone},
                        {"Nov 15 10:00:00 gpu-a17 train[4242]: ", kNone},
                        {"E1115 10:00:00.123456 4242 train.py:12] ", kNone}}) {
    const Diagnosis diagnosis = diagnosis_of_text("start\n" + with_prefix(c.prefix, kTraceback));
    EXPECT_EQ(slug_of(diagnosis), "python-error") << c.prefix;
    EXPECT_EQ(diagnosis.first_rank.value_or(kNone), c.rank) << c.prefix;
    EXPECT_THAT(diagnosis.explanation, HasSubstr("It is: ValueError: bad")) << c.prefix;
  }
}

TEST(PrefixTable, LoggersPrefixOnlyTheFirstOfManyLines) {
  for (const char* prefix : {"2026-11-15 10:00:00,123 - ERROR - rank=3 - ", "[rank 3] ERROR ", "[Rank 3] "}) {
    const Diagnosis diagnosis = diagnosis_of_text("start\n" + (prefix + kTraceback));
    EXPECT_THAT(diagnosis.explanation, HasSubstr("It is: ValueError: bad")) << prefix;
    EXPECT_EQ(diagnosis.first_rank, 3) << prefix;
  }
}

// The same name before every line says nothing, and hides nothing.
TEST(PrefixTable, ACommonNameIsLeftOut) {
  std::string text = "Loading\n";
  for (int i = 0; i < 8; ++i) text += fmt::format("epoch {}\n", i);
  text += "srun: error: n1: task 5: Killed\n";
  for (const char* prefix : {"[pod/train-0/main] ", "trainer-1  | ", "node-3: "}) {
    const Diagnosis diagnosis = diagnosis_of_text(with_prefix(prefix, text));
    EXPECT_EQ(slug_of(diagnosis), "killed") << prefix;
    EXPECT_EQ(diagnosis.first_rank, 5) << prefix;
  }
  EXPECT_EQ(common_prefix(with_prefix("[rank3]: ", text)), "");
  EXPECT_EQ(common_prefix(with_prefix("srun: ", text)), "");
  EXPECT_EQ(common_prefix(text + with_prefix("node-3: ", text)), "");
}

TEST(PrefixTable, LearnedWritersAreToldApart) {
  std::string text = "worker-3  | setting up, rank=6\n";
  const std::string other = "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\nKeyError: 'x'\n";
  const std::string first = with_prefix("worker-3  | ", kTraceback), second = with_prefix("worker-5  | ", other);
  for (std::size_t a = 0, b = 0; a < first.size() || b < second.size();) {
    const std::size_t end_a = first.find('\n', a) + 1, end_b = second.find('\n', b) + 1;
    if (a < first.size()) text += first.substr(a, end_a - a), a = end_a;
    if (b < second.size()) text += second.substr(b, end_b - b), b = end_b;
  }
  const Diagnosis diagnosis = diagnosis_of_text(text);
  EXPECT_THAT(diagnosis.explanation, HasSubstr("KeyError: 'x'"));  // the first to end
  EXPECT_FALSE(diagnosis.first_rank);
  const Diagnosis alone = diagnosis_of_text("worker-3  | setting up, rank=6\n" + first);
  EXPECT_EQ(alone.first_rank, 6);  // as it said itself
}

std::string bar(int step, const std::string& title, const std::string& rest = "") {
  return fmt::format("{}{:3}%|###       | {}/1000 [05:00<1:35:00,  1.67it/s{}]", title, step / 10, step, rest);
}

const std::vector<std::pair<std::string, std::function<std::string(int)>>> kStyles = {
    {"Megatron",
     [](int i) {
       return fmt::format(" iteration {:8}/ 1000 | elapsed time per iteration (ms): 12.5 | lm loss: 4.0", i);
     }},
    {"GPT-NeoX", [](int i) { return fmt::format(" samples/sec: 10.1 | iteration {:8}/ 9000 | lm_loss 2.3", i); }},
    {"tqdm", [](int i) { return bar(i, ""); }},
    {"tqdm, rewritten", [](int i) { return bar(10 * i, "") + "\r" + bar(10 * i + 5, ""); }},
    {"tqdm with a loss", [](int i) { return bar(i, "Training: ", ", loss=2.3"); }},
    {"Hugging Face", [](int i) { return fmt::format("{{'loss': 2.3, 'learning_rate': 5e-05, 'epoch': 0.{:02}}}", i); }},
    {"Lightning", [](int i) { return bar(10 * i, "Epoch 0: ", ", v_num=0, train_loss=2.300"); }},
    {"Lightning, Rich",
     [](int i) {
       return fmt::format("Epoch 0/9 \u2501\u2501\u2501\u2501 {}/1000 0:00:01 11.02it/s train_loss: 2.3", i);
     }},
    {"torchtitan",
     [](int i) { return fmt::format("[rank0]:[titan] - root - INFO - \x1b[31mstep: {}  \x1b[32mloss:  8.1", i); }},
    {"DeepSpeed",
     [](int i) { return fmt::format("[logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[1e-05]", i); }},
    {"DeepSpeed's timer",
     [](int i) { return fmt::format("epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=12.3", i); }},
    {"mmcv", [](int i) { return fmt::format("mmdet - INFO - Epoch [1][{}/7330]\tlr: 9e-4, data_time: 0.01", 50 * i); }},
    {"mmengine",
     [](int i) {
       return fmt::format("06/06 10:00:20 - INFO - Iter(train) [{:6}/160000]  data_time: 0.1  loss: 2.3", i);
     }},
    {"fairseq",
     [](int i) {
       return fmt::format("| train_inner | epoch 001:  {0} / 5000 loss=12.3, num_updates={0}, lr=1e-4", i);
     }},
    {"nanoGPT", [](int i) { return fmt::format("iter {}: loss 3.2, time 123.4ms, mfu 30.1%", i); }},
    {"llm.c", [](int i) { return fmt::format("step {:4}/18865 | loss 10.9 (+nanz)| norm 15.3", i); }},
    {"modded-nanoGPT", [](int i) { return fmt::format("step:{}/1750 train_loss:3.1 step_avg:70.1ms", i); }},
    {"NeMo", [](int i) { return fmt::format("Training epoch 0, iteration {}/99 | reduced_train_loss: 10.1", i); }},
    {"detectron2", [](int i) { return fmt::format("d2.utils.events]:  eta: 1:00:00  iter: {}  data_time: 0.01", i); }},
    {"Composer", [](int i) { return fmt::format("[batch={}/1000]:", i); }},
    {"Keras", [](int i) { return fmt::format("{}/1000 [==>........] - ETA: 5s - loss: 2.3", i); }},
    {"timm", [](int i) { return fmt::format("Train: 0 [{:4}/1251 (  4%)]  Loss: 6.95 (6.95)", i); }},
    {"PyTorch's examples", [](int i) { return fmt::format("Epoch: [0][{:5}/5005]\tLoss 6.9e+00 (7.0e+00)", i); }},
    {"MaxText", [](int i) { return fmt::format("completed step: {}, seconds: 1.2, loss: 8.123", i); }},
    {"TensorFlow", [](int i) { return fmt::format("INFO:tensorflow:loss = 2.3, step = {} (5.1 sec)", i); }},
    {"OLMo", [](int i) { return fmt::format("INFO [step={}/1000,epoch=0]", i); }},
    {"torchtune", [](int i) { return bar(i, fmt::format("1|{}|Loss: 2.3:  ", i)); }},
    {"verl", [](int i) { return fmt::format("(main_task pid=42) step:{} - actor/pg_loss:0.01", i); }},
    {"Paddle", [](int i) { return fmt::format("[    INFO] - loss: 2.3, global_step: {}, interval_runtime: 1.2", i); }},
    {"T5X", [](int i) { return fmt::format("trainer.py:501] Training: step {}", i); }},
};

const char* const kCaught =
    "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"/w/a.py\", line 1, in save\n"
    "[rank3]: RuntimeError: upload failed\n";

// What training outlived is not the cause: the time limit is.
TEST(ProgressTable, StepsOfEveryStyleOutliveAnError) {
  for (const auto& [name, line] : kStyles) {
    std::string before, after;
    for (int i = 1; i < 4; ++i) before += line(i) + "\n";
    for (int i = 4; i < 16; ++i) after += line(i) + "\n";
    const std::string limit =
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 DUE TO TIME LIMIT ***\n";
    EXPECT_EQ(slug_of(diagnosis_of_text(before + kCaught + after + limit)), "time-limit") << name;
    EXPECT_EQ(slug_of(diagnosis_of_text(before + after + kCaught)), "python-error") << name;
  }
}

// Other processes may prepare data long after a rank died.
TEST(ProgressTable, OtherBarsAreNoSteps) {
  for (const char* title : {"Map: ", "Loading checkpoint shards: ", "Downloading: ", "Validation: "}) {
    std::string bars;
    for (int i = 1; i < 40; ++i) bars += bar(i, title) + "\n";
    EXPECT_EQ(slug_of(diagnosis_of_text(kCaught + bars)), "python-error") << title;
  }
  EXPECT_FALSE(step_in("12/31/2026 is a date, loss of life"));
}

TEST(Encoding, Utf16IsRead) {
  const std::string plain = with_prefix("[rank3]: ", kTraceback) + "gr\xc3\xbc\xc3\x9f \xf0\x9f\x92\xa5\n";
  std::u16string wide;
  for (const char c : with_prefix("[rank3]: ", kTraceback)) wide += static_cast<char16_t>(c);
  wide += u"gr\u00fc\u00df \U0001f4a5\n";
  const auto bytes = [&](bool big_endian, bool with_mark) {
    std::string all;
    for (const char16_t c : (with_mark ? u"\ufeff" : u"") + wide) {
      const char low = static_cast<char>(c & 0xff), high = static_cast<char>(c >> 8);
      all += big_endian ? std::string{high, low} : std::string{low, high};
    }
    return all;
  };
  for (const bool big_endian : {false, true})
    for (const bool with_mark : {false, true}) {
      const std::string raw = bytes(big_endian, with_mark);
      EXPECT_EQ(diagnosis_of_text(raw).first_rank, 3);
      auto decoder = Utf16Decoder::for_text(raw);
      ASSERT_TRUE(decoder);
      std::string decoded;
      for (std::size_t at = 0; at < raw.size(); at += 3) decoded += decoder->decode(raw.substr(at, 3));
      EXPECT_EQ(decoded, plain);
    }
  EXPECT_FALSE(Utf16Decoder::for_text(plain));
}

std::string wrapped_at(std::size_t width, const std::string& text) {
  std::string all;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    for (std::size_t i = at; i < end; i += width) all += text.substr(i, std::min(width, end - i)) + "\n";
  }
  return all;
}

TEST(Wrapped, LinesAreJoined) {
  const std::string long_path =
      "/opt/conda/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/";
  const std::string text = with_prefix(
      "[rank3]: ",
      "Traceback (most recent call last):\n  File \"" + long_path +
          "__init__.py\", line 357, in wrapper\n    return f(*args, **kwargs)\n  File \"" + long_path +
          "a.py\", line 4, in train\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU "
          "5 has a total capacity of 79.15 GiB of which 834.69 MiB is free.\n");
  const Diagnosis diagnosis = diagnosis_of_text("start\n" + wrapped_at(80, text));
  EXPECT_EQ(slug_of(diagnosis), "gpu-oom");
  EXPECT_EQ(diagnosis.first_rank, 3);
  EXPECT_THAT(diagnosis.explanation, HasSubstr("1.95 GiB on a GPU of 79.15 GiB with 834.69 MiB free"));
  EXPECT_EQ(width_of_wrapped(wrapped_at(80, text)), 80u);
}

TEST(Wrapped, ASingleLongLineIsJoined) {
  const std::string text = "RuntimeError: " + std::string(60, 'x') + " and CUDA error: an illegal memory access " +
                           std::string(60, 'y') + " at the end\n";
  EXPECT_EQ(width_of_wrapped("start\n" + wrapped_at(80, text)), 80u);
  EXPECT_EQ(width_of_wrapped("start\n" + std::string(80, '-') + "\na table\n" + std::string(80, '-') + "\n"), 0u);
}

TEST(Wrapped, ListsOfLinesOfOneWidthAreNot) {
  std::string list;
  for (int i = 100; i < 200; ++i) list += fmt::format("step {} | {:70}\n", i, "loss: 2.3");
  EXPECT_EQ(width_of_wrapped(list), 0u);
}

std::string boxed(const char* left, const std::string& text, const char* fill, const char* right) {
  std::string line = left + text;
  for (std::size_t i = text.size(); i < 78; ++i) line += fill;
  return line + right + "\n";
}

TEST(Wrapped, TracebacksOfRichAreRead) {
  std::string text = boxed("\u256d", " Traceback (most recent call last) ", "\u2500", "\u256e");
  for (int i = 1; i < 9; ++i) text += boxed("\u2502", fmt::format(" /w/train.py:{} in main", i), " ", "\u2502");
  text += boxed("\u2570", "", "\u2500", "\u256f") + "RuntimeError: CUDA error: device-side assert triggered\n";
  EXPECT_EQ(width_of_wrapped(text), 0u);
  EXPECT_EQ(slug_of(diagnosis_of_text("start\n" + text)), "cuda-error");
}

}  // namespace
}  // namespace braid
