// Tensors and metadata that do not fit their problem: one mutation of a good call a row. Before anything is
// compared, not a byte of any block may have changed, caches and guards included.
#include <array>
#include <limits>

#include "refusal.hpp"

namespace attn::testing {
namespace {

// Metadata that a mutation may point the call at.
struct Storage {
  std::array<std::int32_t, 16> ints{};
  std::array<float, 16> floats{};

  const std::int32_t* copy(const std::int32_t* from, std::size_t count, std::size_t at, std::int32_t value) {
    std::copy_n(from, count, ints.begin());
    ints[at] = value;
    return ints.data();
  }
};

struct BadTensors {
  const char* name;
  const char* line;
  void (*mutate)(Tensors& t, Storage& s);
  std::vector<std::string> words;
};

constexpr const char* kDense = "b2 hq4 hk2 sq9 sk30 d16 bf16 lse";
constexpr const char* kPlain = "b2 hq4 hk2 sq9 sk30 d16 bf16";
constexpr const char* kPacked = "b2 hq4 hk2 sq9 sk30 d16 bf16 lse varlen_kv=43 lens_q=9,1 lens_kv=30,10";
constexpr const char* kPackedUsed = "b2 hq4 hk2 sq9 sk30 d16 bf16 varlen_kv=43 seqused lens_kv=20,10";
constexpr const char* kUsed = "b2 hq4 hk2 sq9 sk30 d16 bf16 lse lens_kv=30,10";
constexpr const char* kPaged = "b2 hq4 hk2 sq9 sk32 d16 bf16 lse page=16 pages=5 lens_kv=32,10";
constexpr const char* kAppend =
    "b2 hq4 hk2 sq3 sk30 d16 bf16 lse new=3 causal=br rotary=16,half lens_kv=27,10";
constexpr const char* kPagedAppend = "b2 hq4 hk2 sq3 sk32 d16 bf16 lse page=16 pages=5 new=3 lens_kv=29,10";
constexpr const char* kExtras = "b2 hq4 hk2 sq9 sk30 d16 bf16 lse sinks alibi causal=br slopes=batch";

void* odd(void* p) {
  return static_cast<std::byte*>(p) + 1;
}

const std::vector<BadTensors>& bad_tensors() {
  static const std::vector<BadTensors> kAll = {
      // Presence.
      {"NoQ", kDense, [](Tensors& t, Storage&) { t.q.data = nullptr; }, {"q is null", "(2, 9, 4, 16)"}},
      {"NoK", kDense, [](Tensors& t, Storage&) { t.k.data = nullptr; }, {"k is null", "(2, 30, 2, 16)"}},
      {"NoV", kDense, [](Tensors& t, Storage&) { t.v.data = nullptr; }, {"v is null"}},
      {"NoO", kDense, [](Tensors& t, Storage&) { t.o.data = nullptr; }, {"o is null"}},
      {"NoLse", kDense, [](Tensors& t, Storage&) { t.lse.data = nullptr; }, {"lse is null", "(2, 4, 9, 1)"}},
      {"LseNotWanted",
       kPlain,
       [](Tensors& t, Storage& s) { t.lse = TensorView::lse(s.floats.data(), 2, 4, 9); },
       {"lse is given", "absent, since want_lse is not set"}},
      {"NoKNew",
       kAppend,
       [](Tensors& t, Storage&) { t.k_new.data = nullptr; },
       {"k_new is null", "(2, 3, 2, 16)"}},
      {"NoVNew", kAppend, [](Tensors& t, Storage&) { t.v_new.data = nullptr; }, {"v_new is null"}},
      {"KNewNotWanted",
       kDense,
       [](Tensors& t, Storage&) { t.k_new = t.k; },
       {"k_new is given", "absent, since seqlen_new is not set"}},
      {"VNewNotWanted", kDense, [](Tensors& t, Storage&) { t.v_new = t.v; }, {"v_new is given"}},
      {"CosNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.rotary_cos = TensorView::lse(s.floats.data(), 1, 1, 1); },
       {"rotary_cos is given", "rotary_dim"}},
      {"SinNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.rotary_sin = TensorView::lse(s.floats.data(), 1, 1, 1); },
       {"rotary_sin is given", "rotary_dim"}},
      {"NoCos", kAppend, [](Tensors& t, Storage&) { t.rotary_cos.data = nullptr; }, {"rotary_cos is null"}},
      {"NoSin", kAppend, [](Tensors& t, Storage&) { t.rotary_sin.data = nullptr; }, {"rotary_sin is null"}},
      {"CuQNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.cu_seqlens_q = s.ints.data(); },
       {"cu_seqlens_q is given", "null, since varlen_q is not set"}},
      {"CuKvNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.cu_seqlens_kv = s.ints.data(); },
       {"cu_seqlens_kv is given", "varlen_kv"}},
      {"UsedNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.seqused_kv = s.ints.data(); },
       {"seqused_kv is given", "seqused_kv is not set"}},
      {"TableNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.page_table = s.ints.data(); },
       {"page_table is given", "page_size"}},
      {"SinksNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.sinks = s.floats.data(); },
       {"sinks is given", "sinks is not set"}},
      {"SlopesNotWanted",
       kDense,
       [](Tensors& t, Storage& s) { t.alibi_slopes = s.floats.data(); },
       {"alibi_slopes is given", "alibi is not set"}},
      {"NoCuQ",
       kPacked,
       [](Tensors& t, Storage&) { t.cu_seqlens_q = nullptr; },
       {"cu_seqlens_q is null", "varlen_q is set"}},
      {"NoCuKv",
       kPacked,
       [](Tensors& t, Storage&) { t.cu_seqlens_kv = nullptr; },
       {"cu_seqlens_kv is null", "varlen_kv is set"}},
      {"NoUsed",
       kUsed,
       [](Tensors& t, Storage&) { t.seqused_kv = nullptr; },
       {"seqused_kv is null", "seqused_kv is set"}},
      {"NoTable",
       kPaged,
       [](Tensors& t, Storage&) { t.page_table = nullptr; },
       {"page_table is null", "page_size is set"}},
      {"NoSinks",
       kExtras,
       [](Tensors& t, Storage&) { t.sinks = nullptr; },
       {"sinks is null", "sinks is set"}},
      {"NoSlopes",
       kExtras,
       [](Tensors& t, Storage&) { t.alibi_slopes = nullptr; },
       {"alibi_slopes is null", "alibi is set"}},
      // Dtypes.
      {"QDtype",
       kDense,
       [](Tensors& t, Storage&) { t.q.dtype = DType::kFloat16; },
       {"q dtype is fp16", "allowed: bf16"}},
      {"KDtype",
       kDense,
       [](Tensors& t, Storage&) { t.k.dtype = DType::kFloat32; },
       {"k dtype is fp32", "allowed: bf16"}},
      {"VDtype",
       kDense,
       [](Tensors& t, Storage&) { t.v.dtype = static_cast<DType>(7); },
       {"v dtype is ", "allowed: bf16"}},
      {"ODtype", kDense, [](Tensors& t, Storage&) { t.o.dtype = DType::kFloat32; }, {"o dtype is fp32"}},
      {"LseDtype",
       kDense,
       [](Tensors& t, Storage&) { t.lse.dtype = DType::kBFloat16; },
       {"lse dtype is bf16", "allowed: fp32"}},
      {"KNewDtype",
       kAppend,
       [](Tensors& t, Storage&) { t.k_new.dtype = DType::kFloat16; },
       {"k_new dtype is fp16"}},
      {"VNewDtype",
       kAppend,
       [](Tensors& t, Storage&) { t.v_new.dtype = DType::kFloat16; },
       {"v_new dtype is fp16"}},
      {"CosDtype",
       kAppend,
       [](Tensors& t, Storage&) { t.rotary_cos.dtype = DType::kBFloat16; },
       {"rotary_cos dtype is bf16", "allowed: fp32"}},
      {"SinDtype",
       kAppend,
       [](Tensors& t, Storage&) { t.rotary_sin.dtype = DType::kBFloat16; },
       {"rotary_sin dtype is bf16"}},
      // Shapes, every axis of every tensor.
      {"QBatch",
       kDense,
       [](Tensors& t, Storage&) { t.q.shape[0] = 3; },
       {"q shape is (3, 9, 4, 16)", "(2, 9, 4, 16)"}},
      {"QSeqlen", kDense, [](Tensors& t, Storage&) { t.q.shape[1] = 10; }, {"q shape is (2, 10, 4, 16)"}},
      {"QHeads", kDense, [](Tensors& t, Storage&) { t.q.shape[2] = 2; }, {"q shape is (2, 9, 2, 16)"}},
      {"QHeadDim", kDense, [](Tensors& t, Storage&) { t.q.shape[3] = 8; }, {"q shape is (2, 9, 4, 8)"}},
      {"QNegative", kDense, [](Tensors& t, Storage&) { t.q.shape[1] = -9; }, {"q shape is (2, -9, 4, 16)"}},
      {"KBatch", kDense, [](Tensors& t, Storage&) { t.k.shape[0] = 1; }, {"k shape is (1, 30, 2, 16)"}},
      {"KSeqlen", kDense, [](Tensors& t, Storage&) { t.k.shape[1] = 29; }, {"k shape is (2, 29, 2, 16)"}},
      {"KHeads", kDense, [](Tensors& t, Storage&) { t.k.shape[2] = 4; }, {"k shape is (2, 30, 4, 16)"}},
      {"KHeadDim", kDense, [](Tensors& t, Storage&) { t.k.shape[3] = 15; }, {"k shape is (2, 30, 2, 15)"}},
      {"VSeqlen", kDense, [](Tensors& t, Storage&) { t.v.shape[1] = 31; }, {"v shape is (2, 31, 2, 16)"}},
      {"VHeads", kDense, [](Tensors& t, Storage&) { t.v.shape[2] = 1; }, {"v shape is (2, 30, 1, 16)"}},
      {"VHeadDim", kDense, [](Tensors& t, Storage&) { t.v.shape[3] = 17; }, {"v shape is (2, 30, 2, 17)"}},
      {"OSeqlen", kDense, [](Tensors& t, Storage&) { t.o.shape[1] = 8; }, {"o shape is (2, 8, 4, 16)"}},
      {"OHeads", kDense, [](Tensors& t, Storage&) { t.o.shape[2] = 2; }, {"o shape is (2, 9, 2, 16)"}},
      {"OHeadDim", kDense, [](Tensors& t, Storage&) { t.o.shape[3] = 15; }, {"o shape is (2, 9, 4, 15)"}},
      {"LseOrder",
       kDense,
       [](Tensors& t, Storage&) { std::swap(t.lse.shape[1], t.lse.shape[2]); },
       {"lse shape is (2, 9, 4, 1)", "(2, 4, 9, 1)"}},
      {"PackedQ",
       kPacked,
       [](Tensors& t, Storage&) { t.q.shape[1] = 10; },
       {"q shape is (1, 10, 4, 16)", "(1, 13, 4, 16)"}},
      {"PackedK",
       kPacked,
       [](Tensors& t, Storage&) { t.k.shape[0] = 2; },
       {"k shape is (2, 43, 2, 16)", "(1, 43, 2, 16)"}},
      {"Pool",
       kPaged,
       [](Tensors& t, Storage&) { t.k.shape[0] = 4; },
       {"k shape is (4, 16, 2, 16)", "(5, 16, 2, 16)"}},
      {"PageSlots", kPaged, [](Tensors& t, Storage&) { t.v.shape[1] = 8; }, {"v shape is (5, 8, 2, 16)"}},
      {"KNewLength",
       kAppend,
       [](Tensors& t, Storage&) { t.k_new.shape[1] = 2; },
       {"k_new shape is (2, 2, 2, 16)", "(2, 3, 2, 16)"}},
      {"VNewHeads",
       kAppend,
       [](Tensors& t, Storage&) { t.v_new.shape[2] = 4; },
       {"v_new shape is (2, 3, 4, 16)"}},
      {"CosPairs",
       kAppend,
       [](Tensors& t, Storage&) { t.rotary_cos.shape[3] = 16; },
       {"rotary_cos shape is (1, 30, 1, 16)", ", 1, 8)"}},
      {"SinPositions",
       kAppend,
       [](Tensors& t, Storage&) { t.rotary_sin.shape[1] = 29; },
       {"rotary_sin shape is (1, 29, 1, 8)", "(1, 30, 1, 8)"}},
      {"TooFewPositions",
       kAppend,
       [](Tensors& t, Storage&) { t.rotary_cos.shape[1] = t.rotary_sin.shape[1] = 29; },
       {"rotary_cos shape is (1, 29, 1, 8)", "at least 30 positions"}},
      // Strides and addresses.
      {"QLastStride",
       kDense,
       [](Tensors& t, Storage&) { t.q.strides[3] = 2; },
       {"q stride of its last axis is 2", "1: head_dim must be contiguous"}},
      {"KLastStride",
       kDense,
       [](Tensors& t, Storage&) { t.k.strides[3] = -1; },
       {"k stride of its last axis is -1"}},
      {"VLastStride",
       kDense,
       [](Tensors& t, Storage&) { t.v.strides[3] = 0; },
       {"v stride of its last axis is 0"}},
      {"OLastStride",
       kDense,
       [](Tensors& t, Storage&) { t.o.strides[3] = 4; },
       {"o stride of its last axis is 4"}},
      {"OBroadcast",
       kDense,
       [](Tensors& t, Storage&) { t.o.strides[0] = 0; },
       {"o strides is (0, ", "no two elements of this written tensor share an address"}},
      {"OOverlap",
       kDense,
       [](Tensors& t, Storage&) { t.o.strides[1] = 16; },
       {"o strides is ", "share an address"}},
      {"LseOverlap",
       kDense,
       [](Tensors& t, Storage&) { t.lse.strides[1] = 1; },
       {"lse strides is ", "share an address"}},
      {"CacheBroadcast",
       kAppend,
       [](Tensors& t, Storage&) { t.k.strides[2] = 0; },
       {"k strides is ", "share an address"}},
      {"VCacheBroadcast",
       kAppend,
       [](Tensors& t, Storage&) { t.v.strides[1] = 0; },
       {"v strides is ", "share an address"}},
      {"StrideReach",
       kDense,
       [](Tensors& t, Storage&) { t.k.strides[1] = INT64_MAX / 2; },
       {"k strides is ", "63 bits"}},
      {"StrideReachMin",
       kDense,
       [](Tensors& t, Storage&) { t.v.strides[0] = INT64_MIN; },
       {"v strides is ", "63 bits"}},
      {"QAddress",
       kDense,
       [](Tensors& t, Storage&) { t.q.data = odd(t.q.data); },
       {"q address is ", "a multiple of 2 bytes"}},
      {"OAddress",
       kDense,
       [](Tensors& t, Storage&) { t.o.data = odd(t.o.data); },
       {"o address is ", "a multiple of 2 bytes"}},
      {"LseAddress",
       kDense,
       [](Tensors& t, Storage&) { t.lse.data = odd(odd(t.lse.data)); },
       {"lse address is ", "a multiple of 4 bytes"}},
      {"UsedAddress",
       kUsed,
       [](Tensors& t, Storage&) {
         t.seqused_kv =
             reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(t.seqused_kv) + 2);
       },
       {"seqused_kv address is ", "a multiple of 4 bytes"}},
      // Metadata.
      {"CuQStart",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_q = s.copy(t.cu_seqlens_q, 3, 0, 1); },
       {"cu_seqlens_q[0] is 1", "allowed: 0"}},
      {"CuQDecreasing",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_q = s.copy(t.cu_seqlens_q, 3, 2, 8); },
       {"cu_seqlens_q[2] is 8", "at least the entry before it, 9"}},
      {"CuQTooLong",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_q = s.copy(t.cu_seqlens_q, 3, 1, 10); },
       {"length of sequence 0 in cu_seqlens_q is 10", "at most seqlen_q, 9"}},
      {"CuQBeyondRows",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_q = s.copy(t.cu_seqlens_q, 3, 2, 14); },
       {"cu_seqlens_q[2] is 14", "at most the packed tensor's rows, 13"}},
      {"CuKvNegative",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_kv = s.copy(t.cu_seqlens_kv, 3, 1, INT32_MIN); },
       {"cu_seqlens_kv[1] is -2147483648"}},
      {"CuKvHuge",
       kPacked,
       [](Tensors& t, Storage& s) { t.cu_seqlens_kv = s.copy(t.cu_seqlens_kv, 3, 2, INT32_MAX); },
       {"cu_seqlens_kv"}},
      {"UsedNegative",
       kUsed,
       [](Tensors& t, Storage& s) { t.seqused_kv = s.copy(t.seqused_kv, 2, 1, -1); },
       {"seqused_kv[1] is -1", "0 to 30"}},
      {"UsedTooLong",
       kUsed,
       [](Tensors& t, Storage& s) { t.seqused_kv = s.copy(t.seqused_kv, 2, 0, 31); },
       {"seqused_kv[0] is 31", "0 to 30"}},
      {"UsedLeavesNoRoom",
       kAppend,
       [](Tensors& t, Storage& s) { t.seqused_kv = s.copy(t.seqused_kv, 2, 0, 28); },
       {"seqused_kv[0] is 28", "0 to 27"}},
      {"UsedBeyondPacked",
       kPackedUsed,
       [](Tensors& t, Storage& s) { t.seqused_kv = s.copy(t.seqused_kv, 2, 1, 30); },
       {"seqused_kv[1] is 30", "0 to 12"}},
      {"PageNegative",
       kPaged,
       [](Tensors& t, Storage& s) { t.page_table = s.copy(t.page_table, 6, 1, -1); },
       {"page_table[0][1] is -1", "0 to 4 (num_pages - 1)"}},
      {"PageBeyondPool",
       kPaged,
       [](Tensors& t, Storage& s) { t.page_table = s.copy(t.page_table, 6, 3, 5); },
       {"page_table[1][0] is 5", "0 to 4 (num_pages - 1)"}},
      {"AppendPageBeyondPool",
       kPagedAppend,
       [](Tensors& t, Storage& s) { t.page_table = s.copy(t.page_table, 6, 1, 77); },
       {"page_table[0][1] is 77"}},
      {"OutputOverQuery",
       kPlain,
       [](Tensors& t, Storage&) { t.o.data = t.q.data; },
       {"o is in the memory of q", "no other tensor"}},
      {"OutputShiftedIntoValues",
       kPlain,
       [](Tensors& t, Storage&) { t.o.data = static_cast<char*>(t.v.data) + 32; },
       {"o is in the memory of v"}},
      {"LseInOutput",
       kDense,
       [](Tensors& t, Storage&) { t.lse.data = static_cast<char*>(t.o.data) + 8; },
       {"o is in the memory of lse"}},
      {"AppendOverNewKeys",
       kAppend,
       [](Tensors& t, Storage&) { t.k_new.data = t.k.data; },
       {"k is in the memory of k_new"}},
      {"SlopeInfinite",
       kExtras,
       [](Tensors& t, Storage& s) {
         s.floats.fill(std::numeric_limits<float>::infinity());
         t.alibi_slopes = s.floats.data();
         t.alibi_batch_stride = 0;
       },
       {"alibi_slopes[0] is inf", "up to 2^126"}},
      {"AppendPageOfTwoSequences",
       kPagedAppend,
       [](Tensors& t, Storage& s) { t.page_table = s.copy(t.page_table, 6, 3, t.page_table[1]); },
       {"page that sequence 1 appends to is", "no other sequence appends to; sequence 0 does"}},
      {"TableStride",
       kPaged,
       [](Tensors& t, Storage&) { t.page_table_stride = 1; },
       {"page_table_stride is 1", "at least 2"}},
      {"TableStrideNegative",
       kPaged,
       [](Tensors& t, Storage&) { t.page_table_stride = -3; },
       {"page_table_stride is -3"}},
      {"TableStrideHuge",
       kPaged,
       [](Tensors& t, Storage&) { t.page_table_stride = INT64_MAX; },
       {"page_table_stride is 9223372036854775807", "at most "}},
      {"SlopesStride",
       kExtras,
       [](Tensors& t, Storage&) { t.alibi_batch_stride = 3; },
       {"alibi_batch_stride is 3", "at least heads_q, 4"}},
      {"SlopesStrideNegative",
       kExtras,
       [](Tensors& t, Storage&) { t.alibi_batch_stride = -4; },
       {"alibi_batch_stride is -4"}},
      {"SlopesStrideAlone",
       kDense,
       [](Tensors& t, Storage&) { t.alibi_batch_stride = 4; },
       {"alibi_batch_stride is 4", "0, since alibi is not set"}},
  };
  return kAll;
}

class BadTensorsTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(BadTensorsTest, AreRefusedBeforeAnyWrite) {
  const BadTensors& bad = bad_tensors()[GetParam()];
  const verify::Case c = case_of(bad.line);
  verify::Judge judge(c, {});
  verify::Buffers& buffers = judge.buffers();
  buffers.reset();
  Plan plan;
  ASSERT_TRUE(make_plan(c.problem, cpu_plan(), &plan).ok());
  const verify::Block workspace("workspace", plan.workspace_bytes(), true);
  std::memset(workspace.payload(), 0x5A, workspace.payload_bytes());
  ASSERT_TRUE(validate(c.problem, buffers.tensors(), true).ok())
      << "the mutation must be the only thing wrong";

  Tensors t = buffers.tensors();
  Storage storage;
  bad.mutate(t, storage);
  const auto before = snapshot(buffers);
  expect_refusal(run(plan, t, workspace.payload(), workspace.payload_bytes()), bad.words);
  expect_refusal(validate(c.problem, t, true), bad.words);
  EXPECT_EQ(snapshot(buffers), before) << "a refused call must write nothing";
  for (std::size_t n = 0; n < workspace.payload_bytes(); ++n) {
    ASSERT_EQ(workspace.payload()[n], std::byte{0x5A}) << "a refused call must not touch the workspace";
  }

  const Status good = run(plan, buffers.tensors(), workspace.payload(), workspace.payload_bytes());
  EXPECT_TRUE(good.ok()) << good.message();
  const verify::Report report = judge.compare();
  EXPECT_TRUE(report.passed) << "the next good call works: " << report.failure;
}
INSTANTIATE_TEST_SUITE_P(All, BadTensorsTest, ::testing::Range<std::size_t>(0, bad_tensors().size()),
                         [](const auto& param) { return std::string(bad_tensors()[param.param].name); });

// Where the metadata is not on the host it cannot be looked at, and must not be.
TEST(BadTensorsTest, MetadataElsewhereIsNotRead) {
  verify::Buffers buffers(case_of(kPacked));
  Tensors t = buffers.tensors();
  t.cu_seqlens_q = t.cu_seqlens_kv = reinterpret_cast<const std::int32_t*>(std::uintptr_t{4096});
  EXPECT_TRUE(validate(buffers.problem(), t, false).ok());
}

// What is allowed beside what is refused: entries that no sequence reaches may hold anything.
TEST(BadTensorsTest, UnusedPageTableEntriesMayHoldAnything) {
  expect_line("b2 hq4 hk2 sq9 sk64 d16 bf16 lse page=16 lens_kv=17,0");  // their entries are −1 and 2³¹ − 1
}

}  // namespace
}  // namespace attn::testing
