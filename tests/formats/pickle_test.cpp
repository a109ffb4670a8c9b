// Pickles: Python's are read correctly, ours can be read again, and every error is reported with its offset. In
// tests/oracles, Python reads ours.
#include "formats/pickle.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"

namespace braid {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

const PickleVocabulary kVocabulary = {"collections.OrderedDict", "torch.Size", "megatron.core.*"};

PickleValue read(const std::string& bytes) { return read_pickle(bytes, "x.pt", kVocabulary); }
std::string read_text(const std::string& bytes) { return to_text(read(bytes)); }
std::string read_error(const std::string& bytes) {
  return error_of<DataError>([&] { read(bytes); });
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Written by Python, the same value in every protocol.
TEST(Pickle, EveryProtocolSaysTheSame) {
  for (const char* protocol : {"0", "1", "2", "3", "4", "5"}) {
    std::ifstream file(BRAID_SOURCE_DIR "/tests/fuzz/corpus/pickle/python_protocol_"s + protocol, std::ios::binary);
    const PickleValue value = read({std::istreambuf_iterator<char>(file), {}});
    EXPECT_EQ(
        to_text(value),
        "{'none': None, 't': True, 'f': False, 'i': [0, 255, 256, 65535, 65536, -1, -2147483648, 2147483648, "
        "9223372036854775807, -9223372036854775808], 'd': [0.5, -1e+300, inf], 's': 'grüß 😀 \\\\ \\x0a', "
        "'b': b'\\x00\\xff\\x80a', 'e': b'', 'tup': (), 't1': (1,), 't2': (1, 2), 't3': (1, 2, 3), 't4': (1, 2, 3, 4), "
        "'set': builtins.set([7]), 'fs': builtins.frozenset([8]), "
        "'od': collections.OrderedDict(items={'a': 1}), 'shared': [[1], [1]]}")
        << protocol;
    const PickleList* shared = as<PickleList>(find(value, "shared"));
    EXPECT_EQ(shared->items[0], shared->items[1]) << "one list, held twice";
  }
}

TEST(Pickle, WhatIsWrittenIsReadAgain) {
  const PickleValue list = pickle_list({pickle(1), pickle_tuple({})});
  const PickleValue size = pickle_call(pickle_global("torch", "Size"), {pickle_tuple({pickle(2), pickle(3)})});
  const PickleValue value = pickle_dict(
      {{"none", pickle_none()},
       {"flags", pickle_tuple({pickle(true), pickle(false)})},
       {"ints", pickle_list({pickle(0), pickle(256), pickle(-1), pickle(70000), pickle(std::int64_t{1} << 40),
                             pickle(std::numeric_limits<std::int64_t>::min())})},
       {"doubles", pickle_tuple({pickle(0.1), pickle(-0.0), pickle(std::nan("")), pickle(3.0)})},
       {"text", pickle("it's \"größer\"")},
       {"bytes", pickle(PickleBytes{"\x00\x7f\x80\xff"s})},
       {"long", pickle(std::string(70000, 'x'))},
       {"shared", pickle_list({list, list, size, size})}});
  const PickleValue again = read(write_pickle(value));
  EXPECT_EQ(to_text(again, 100'000), to_text(value, 100'000));
  const PickleList* shared = as<PickleList>(find(again, "shared"));
  EXPECT_EQ(shared->items[0], shared->items[1]);
  EXPECT_EQ(shared->items[2], shared->items[3]);
  EXPECT_NE(shared->items[0], shared->items[2]);
}

TEST(Pickle, AnObjectIsItsTypeArgumentsStateAndItems) {
  PickleObject object{.type = pickle_global("megatron.core.x", "Y"), .args = {pickle(1)}, .by_new = true};
  object.state = pickle_dict({{"a", pickle("in state")}, {"b", pickle(1)}, {"b", pickle(2)}});
  object.items.items = {{pickle("a"), pickle("in items")}, {pickle("c"), pickle("in items")}};
  const PickleValue value = read(write_pickle(std::make_shared<PickleNode>(PickleNode{object})));
  EXPECT_EQ(to_text(value),
            "megatron.core.x.Y(1, state={'a': 'in state', 'b': 1, 'b': 2}, items={'a': 'in items', 'c': 'in items'})");
  EXPECT_TRUE(as<PickleObject>(value)->by_new);
  EXPECT_TRUE(is_global(as<PickleObject>(value)->type, "megatron.core.x", "Y"));
  EXPECT_EQ(to_text(find(value, "a")), "'in state'");
  EXPECT_EQ(to_text(find(value, "b")), "2") << "what was set last counts";
  EXPECT_EQ(to_text(find(value, "c")), "'in items'");
  EXPECT_EQ(find(value, "d"), nullptr);
  EXPECT_EQ(find(pickle(3), "d"), nullptr);
}

TEST(Pickle, PersistentIdsAreKept) {
  const PickleValue value = read("\x80\x02(X\x07\0\0\0storageX\x01\0\0\0"s + "0tQ.");
  EXPECT_EQ(to_text(value), "persistent(('storage', '0'))");
  EXPECT_EQ(to_text(read(write_pickle(value))), to_text(value));
  EXPECT_EQ(read_text("Psome id\n."), "persistent('some id')");
}

TEST(Pickle, RepeatedStringsAndNamesAreWrittenOnce) {
  const std::string name(1000, 'n');
  std::vector<PickleValue> items;
  for (int i = 0; i < 100; ++i) items.push_back(pickle_tuple({pickle(name), pickle_global("torch", "Size")}));
  EXPECT_LT(write_pickle(pickle_list(items)).size(), 2000u);
}

TEST(Pickle, LongTextIsCutOff) {
  PickleValue value = pickle("x");
  for (int i = 0; i < 60; ++i) value = pickle_tuple({value, value});  // more than 2^60 characters
  const std::string text = to_text(value, 100);
  EXPECT_EQ(text.size(), 103u);
  EXPECT_THAT(text, ::testing::EndsWith("..."));
  EXPECT_EQ(read_text(write_pickle(value)), to_text(value));
}

TEST(Pickle, NamesOutsideTheVocabularyAreRefused) {
  EXPECT_EQ(read_text("ctorch\nSize\n."), "torch.Size");
  EXPECT_EQ(read_text("cmegatron.core.a.b\nC\n."), "megatron.core.a.b.C");
  EXPECT_EQ(read_error("\x80\x02"s + "cos\nsystem\nX\x02\0\0\0ls\x85R."s),
            "x.pt: opcode 0x63 (GLOBAL) at offset 2 has the name 'os.system', which is not one that checkpoints use");
  EXPECT_THAT(read_error("\x8c\x02os\x8c\x06system\x93."s), AllOf(HasSubstr("STACK_GLOBAL"), HasSubstr("'os.system'")));
  EXPECT_THAT(read_error("\x8c\x0dmegatron.core\x8c\x03x\nN\x93."s), HasSubstr("not one that checkpoints use"));
  EXPECT_THAT(read_error("cmegatron.corex\nC\n."), HasSubstr("'megatron.corex.C'"));
  EXPECT_THAT(read_error("c__builtin__\neval\n."), HasSubstr("'builtins.eval'"));
  EXPECT_THAT(read_error("ctorch\n" + std::string(300, 'x') + "\n."), HasSubstr("more than 256 characters"));
}

TEST(Pickle, OpcodesThatCheckpointsDoNotUseAreRefused) {
  EXPECT_EQ(read_error("\x80\x04\x82\x01."s), "x.pt: opcode 0x82 (EXT1) at offset 2 is not one that checkpoints use");
  EXPECT_EQ(read_error("N2."), "x.pt: opcode 0x32 (DUP) at offset 1 is not one that checkpoints use");
  EXPECT_EQ(read_error("\xff"), "x.pt: opcode 0xff (unknown) at offset 0 is not one that checkpoints use");
  EXPECT_EQ(read_text("\x96\x02\0\0\0\0\0\0\0ab."s), "builtins.bytearray(b'ab')");
  EXPECT_THAT(read_error("\x97."), HasSubstr("(NEXT_BUFFER) at offset 0 is not one that checkpoints use"));
  EXPECT_THAT(read_error("\x80\x06N."), HasSubstr("(PROTO) at offset 0 says 6"));
}

TEST(Pickle, WhatIsCutOffIsRefused) {
  const std::string whole = write_pickle(pickle_dict({{"a", pickle_list({pickle(1.5), pickle(70000)})}}));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THAT(read_error(whole.substr(0, length)), HasSubstr("x.pt: ")) << length;
  EXPECT_THAT(read_error("X\xff\xff\xff\xff."),
              HasSubstr("(BINUNICODE) at offset 0 needs 4294967295 bytes, 1 are left"));
  EXPECT_THAT(read_error("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), HasSubstr("needs 18446744073709551615 bytes"));
  EXPECT_THAT(read_error("\x80\x04\x95\xff\xff\0\0\0\0\0\0N."s), HasSubstr("(FRAME) at offset 2 needs 65535 bytes"));
  EXPECT_THAT(read_error("I12"), HasSubstr("line without an end"));
  EXPECT_THAT(read_error(whole + "x"), HasSubstr("is followed by 1 more bytes"));
  EXPECT_EQ(read_error("N"), "x.pt: the pickle ends at offset 1 without STOP");
}

TEST(Pickle, AStackThatDoesNotFitIsRefused) {
  EXPECT_THAT(read_error("."), HasSubstr("finds 0 values on the stack"));
  EXPECT_THAT(read_error("NN."), HasSubstr("finds 2 values on the stack"));
  EXPECT_THAT(read_error("N(."), HasSubstr("while a MARK is open"));
  EXPECT_THAT(read_error("Nt."), HasSubstr("finds no MARK"));
  EXPECT_THAT(read_error("]Na(a."), HasSubstr("(APPEND)"));
  EXPECT_THAT(read_error("\x86."), HasSubstr("needs 2 values on the stack, there are 0"));
  EXPECT_THAT(read_error("N(\x85."), HasSubstr("needs 1 values on the stack, there are 0")) << "not across a MARK";
  EXPECT_THAT(read_error("NNa."), HasSubstr("appends to a value that is not a list"));
  EXPECT_THAT(read_error("]NNs."), HasSubstr("sets items of a value that has none"));
  EXPECT_THAT(read_error("}(Nu."), HasSubstr("key without a value"));
  EXPECT_THAT(read_error("}]Ns."), HasSubstr("key that holds a list"));
  EXPECT_THAT(read_error("}]\x85Ns."), HasSubstr("key that holds a list"));
  EXPECT_THAT(read_error("]Nb."), HasSubstr("sets the state of a value that takes none"));
  EXPECT_THAT(read_error("N)R."), HasSubstr("calls a value that is not a name"));
  EXPECT_THAT(read_error("ctorch\nSize\nNR."), HasSubstr("arguments that are not a tuple"));
}

TEST(Pickle, NumbersAndTextThatAreNoneAreRefused) {
  EXPECT_EQ(read_text("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0."s), "9223372036854775807");
  EXPECT_EQ(read_text("\x8a\0."s), "0");
  EXPECT_EQ(read_text("\x8a\x01\x80."s), "-128");
  EXPECT_EQ(read_text("L-5L\n."), "-5");
  EXPECT_THAT(read_error("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."s), HasSubstr("more than 64 bits"));
  EXPECT_THAT(read_error("L9223372036854775808L\n."), HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(read_error("Fnone\n."), HasSubstr("'none', which is not a number"));
  EXPECT_EQ(read_text("V\\u00fc\\U0001f600\xfc\n."), "'ü😀ü'");
  EXPECT_THAT(read_error("V\\u00g0\n."), HasSubstr("invalid escape"));
  EXPECT_THAT(read_error("V\\ud800\n."), HasSubstr("invalid escape"));
  for (const std::string& bytes : {"\x80"s, "\xc3"s, "\xc0\x80"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xff"s})
    EXPECT_THAT(read_error("\x8c" + std::string(1, static_cast<char>(bytes.size())) + bytes + "."),
                HasSubstr("not UTF-8"));
}

TEST(Pickle, MemoEntriesAreThoseOfThePickle) {
  EXPECT_EQ(read_text("]q\0h\0\x86."s), "([], [])");
  EXPECT_THAT(read_error("h\0."s), HasSubstr("(BINGET) at offset 0 reads memo index 0, which is empty"));
  EXPECT_THAT(read_error("Nr\xff\xff\xff\x7f."), HasSubstr("memo index 2147483647, too large for 2 opcodes"));
  EXPECT_THAT(read_error("Np-1\n."), HasSubstr("invalid memo index"));
  EXPECT_THAT(read_error("q\0."s), HasSubstr("finds nothing on the stack"));
}

TEST(Pickle, NothingHoldsItself) {
  EXPECT_THAT(read_error("]q\0h\0a."s),
              HasSubstr("(APPEND) at offset 5 changes a value that is already used elsewhere"));
  EXPECT_THAT(read_error("}q\0Nh\0\x85s."s), HasSubstr("changes a value that is already used elsewhere"));
  EXPECT_THAT(read_error("ctorch\nSize\n)\x81q\0h\0b."s), HasSubstr("changes a value that is already used elsewhere"));
  EXPECT_THAT(read_error("\x8fq\0(h\0\x90."s), HasSubstr("changes a value that is already used elsewhere"));
}

TEST(Pickle, NestingIsBounded) {
  EXPECT_THAT(read_text(repeated("]", 100) + repeated("a", 99) + "."), HasSubstr("[[[["));
  EXPECT_THAT(read_error(repeated("]", 101) + repeated("a", 100) + "."), HasSubstr("nests deeper than 100 levels"));
  EXPECT_THAT(read_error(")" + repeated("\x85", 1'000'000) + "."), HasSubstr("nests deeper than 100 levels"));
  EXPECT_THAT(read_error("N" + repeated("Q", 1'000'000) + "."), HasSubstr("nests deeper than 100 levels"));
  EXPECT_THAT(read_error(repeated("(", 1'000'000)), HasSubstr("without STOP"));
  const std::string sets = repeated("\x8f(", 50) + repeated("\x90", 50) + ".";  // each with a list in it
  EXPECT_EQ(read_text(write_pickle(read(sets))), read_text(sets));
  EXPECT_THAT(read_error(repeated("\x8f(", 51) + repeated("\x90", 51) + "."),
              HasSubstr("nests deeper than 100 levels"));
}

// Protocol 0 has a byte per character where UTF-8 has two.
TEST(Pickle, BytesOfProtocol0MayBeLong) {
  const std::string bytes(1000, '\xff');
  EXPECT_EQ(read_text("c_codecs\nencode\n(V" + bytes + "\nVlatin1\ntR."), to_text(pickle(PickleBytes{bytes})));
}

// A few bytes fetch a large tuple from the memo and copy it as arguments.
TEST(Pickle, ASmallFileDoesNotBecomeALargeValue) {
  const std::string large_tuple = "ctorch\nSize\nq\0"s + "(" + repeated("N", 1000) + "tq\1\x86"s;
  EXPECT_EQ(read_error(large_tuple + "."), "no error");
  EXPECT_THAT(read_error("(" + large_tuple + repeated("h\0h\1R"s, 1000) + "t."), HasSubstr("more arguments than"));
}

}  // namespace
}  // namespace braid
