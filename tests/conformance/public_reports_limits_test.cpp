// Size limits, from public reports: offsets past 2³¹ elements in sparse memory, and more than 65535 of
// everything.
#include <sys/mman.h>

#include "support.hpp"

namespace attn::testing {
namespace {

// Zeroed memory of which only the pages that are written exist. Null where the system does not lend that
// much.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<std::uint16_t*>(p);
  }
  ~SparseMemory() {
    if (data_ != nullptr) {
      munmap(data_, bytes_);
    }
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  [[nodiscard]] std::uint16_t* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::uint16_t* data_ = nullptr;
};

constexpr std::uint16_t kOne = 0x3F80;  // bf16

// The best SIMD level and the GPU's chosen kernel: for problems that take long on every level.
std::vector<PlanOptions> one_plan_a_backend(const Problem& p) {
  std::vector<PlanOptions> plans;
  for (const PlanOptions& plan : all_plans(p, Kernels::kChosen)) {
    if (plans.empty() || plans.back().backend != plan.backend) {
      plans.push_back(plan);
    }
  }
  return plans;
}

float bf16(const std::vector<std::uint16_t>& v, std::int64_t n) {
  return core::bf16_to_float(v[static_cast<std::size_t>(n)]);
}

// thu-ml/SageAttention#386; kohya-ss/musubi-tuner PR#1089; sgl-project/sglang#20389; vllm-project/vllm#50427,
// PR#47671: 32-bit offsets. A fused (S, 3·56·128) bf16 buffer, of which one head is used: rows from 99865 lie
// past 2³¹ elements.
constexpr std::int64_t kFusedRow = 3 * 56 * 128;
constexpr std::int64_t kFusedRows = 100000;
constexpr std::int64_t kHeadDim = 128;

TensorView last_head(const SparseMemory& memory) {
  return {memory.data() + kFusedRow - kHeadDim,
          DType::kBFloat16,
          {1, kFusedRows, 1, kHeadDim},
          {kFusedRows * kFusedRow, kFusedRow, kHeadDim, 1}};
}

class SageAttention386 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (memory_.data() == nullptr) {
      GTEST_SKIP() << "4.3 GB of sparse memory is not to be had here";
    }
  }
  SparseMemory memory_{static_cast<std::size_t>(kFusedRow * kFusedRows) * 2};
  std::vector<std::uint16_t> small_ = std::vector<std::uint16_t>(kFusedRows * kHeadDim);  // compact zeros
  std::vector<std::uint16_t> o_ = std::vector<std::uint16_t>(kFusedRows * kHeadDim);
};

// Zero logits, V = 1 in the last 100 rows: O = 100 / 100000.
TEST_F(SageAttention386, ValuesPastTwoToThe31) {
  const TensorView v = last_head(memory_);
  for (std::int64_t j = kFusedRows - 100; j < kFusedRows; ++j) {
    std::fill_n(static_cast<std::uint16_t*>(v.data) + j * kFusedRow, kHeadDim, kOne);
  }
  const TensorView q = TensorView::bshd(small_.data(), DType::kBFloat16, 1, 2, 1, kHeadDim);
  const TensorView k = TensorView::bshd(small_.data(), DType::kBFloat16, 1, kFusedRows, 1, kHeadDim);
  for (const PlanOptions& plan : all_plans(problem_of(q, k, v), Kernels::kChosen)) {
    const Status status =
        testing::call(plan, q, k, v, TensorView::bshd(o_.data(), DType::kBFloat16, 1, 2, 1, kHeadDim));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_NEAR(bf16(o_, 0), 1e-3, 1e-5) << name_of(plan);
    EXPECT_NEAR(bf16(o_, 2 * kHeadDim - 1), 1e-3, 1e-5) << name_of(plan);
  }
}

// One key near the end has a large logit and V = 1: O = 1. Keys read at a wrapped offset would be 0.
TEST_F(SageAttention386, KeysPastTwoToThe31) {
  const TensorView k = last_head(memory_);
  constexpr std::int64_t kTarget = kFusedRows - 7;
  std::fill_n(static_cast<std::uint16_t*>(k.data) + kTarget * kFusedRow, kHeadDim,
              std::uint16_t{0x4080});  // 4
  std::fill_n(small_.begin() + kTarget * kHeadDim, kHeadDim, kOne);
  const std::vector<std::uint16_t> ones(kHeadDim, kOne);
  const TensorView q = TensorView::bshd(ones.data(), DType::kBFloat16, 1, 1, 1, kHeadDim);
  const TensorView v = TensorView::bshd(small_.data(), DType::kBFloat16, 1, kFusedRows, 1, kHeadDim);
  for (const PlanOptions& plan : all_plans(problem_of(q, k, v), Kernels::kChosen)) {
    const Status status =
        testing::call(plan, q, k, v, TensorView::bshd(o_.data(), DType::kBFloat16, 1, 1, 1, kHeadDim));
    ASSERT_TRUE(status.ok()) << status.message();
    // logit 4 · √128 = 45.25; e^45 is far more than 10⁵.
    EXPECT_EQ(bf16(o_, 0), 1.0F) << name_of(plan);
  }
}

// The last queries look at key 1, all others at the mean of two.
TEST_F(SageAttention386, QueriesPastTwoToThe31) {
  const TensorView q = last_head(memory_);
  std::fill_n(static_cast<std::uint16_t*>(q.data) + (kFusedRows - 1) * kFusedRow, kHeadDim,
              std::uint16_t{0x4080});
  std::vector<std::uint16_t> kv(2 * kHeadDim);
  std::fill_n(kv.begin() + kHeadDim, kHeadDim, kOne);  // key 0 is 0, key 1 is 1; V is the same
  const TensorView k = TensorView::bshd(kv.data(), DType::kBFloat16, 1, 2, 1, kHeadDim);
  for (const PlanOptions& plan : one_plan_a_backend(problem_of(q, k, k))) {
    std::fill(o_.begin(), o_.end(), std::uint16_t{0x7FA5});
    const Status status = testing::call(
        plan, q, k, k, TensorView::bshd(o_.data(), DType::kBFloat16, 1, kFusedRows, 1, kHeadDim));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(bf16(o_, (kFusedRows - 1) * kHeadDim), 1.0F) << name_of(plan);
    EXPECT_EQ(bf16(o_, (kFusedRows - 2) * kHeadDim), 0.5F) << name_of(plan);
    EXPECT_EQ(bf16(o_, 0), 0.5F) << name_of(plan);
  }
}

// vllm-project/vllm#50427: page id times page stride past 2³¹: page 64, 8 heads, 128 channels: stride 65536.
TEST(PublicReports, Vllm50427_PagesPastTwoToThe31) {
  constexpr std::int64_t kPages = 32770;
  constexpr std::int64_t kPage = 64, kHeads = 8;
  constexpr std::int64_t kStride = kPage * kHeads * kHeadDim;
  static_assert(kStride == 65536 && 32768 * kStride == std::int64_t{1} << 31);
  const SparseMemory k(static_cast<std::size_t>(kPages * kStride) * 2);
  const SparseMemory v(static_cast<std::size_t>(kPages * kStride) * 2);
  if (k.data() == nullptr || v.data() == nullptr) {
    GTEST_SKIP() << "twice 4.3 GB of sparse memory is not to be had here";
  }
  // V is 1 in pages 32767 and 32768 for head 5, and 0 elsewhere; all logits are 0.
  for (const std::int64_t page : {32767, 32768}) {
    for (std::int64_t slot = 0; slot < kPage; ++slot) {
      std::fill_n(v.data() + page * kStride + (slot * kHeads + 5) * kHeadDim, kHeadDim, kOne);
    }
  }
  const std::int32_t table[] = {0, 32767, 32768};
  const std::int32_t used = 3 * kPage - 10;
  std::vector<std::uint16_t> q(kHeads * kHeadDim), o(kHeads * kHeadDim);
  Problem p;
  p.heads_q = p.heads_kv = kHeads;
  p.head_dim_qk = p.head_dim_v = kHeadDim;
  p.seqlen_kv = 3 * kPage;
  p.page_size = kPage;
  p.num_pages = kPages;
  p.seqused_kv = true;
  Tensors t;
  t.q = TensorView::bshd(q.data(), DType::kBFloat16, 1, 1, kHeads, kHeadDim);
  t.o = TensorView::bshd(o.data(), DType::kBFloat16, 1, 1, kHeads, kHeadDim);
  t.k = TensorView::bshd(k.data(), DType::kBFloat16, kPages, kPage, kHeads, kHeadDim);
  t.v = TensorView::bshd(v.data(), DType::kBFloat16, kPages, kPage, kHeads, kHeadDim);
  t.page_table = table;
  t.page_table_stride = 3;
  t.seqused_kv = &used;
  for (const PlanOptions& level : all_levels()) {
    Plan plan;
    ASSERT_TRUE(make_plan(p, level, &plan).ok());
    std::vector<std::byte> workspace(plan.workspace_bytes() + 64);
    auto* aligned =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64);
    const Status status = run(plan, t, aligned, plan.workspace_bytes());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_NEAR(bf16(o, 5 * kHeadDim), 118.0 / 182.0, 2e-3) << level.cpu_level;
    EXPECT_EQ(bf16(o, 4 * kHeadDim), 0.0F);
  }
}

// Outputs past 2³¹ elements: two batch entries that far apart.
TEST(PublicReports, SageAttention386_OutputsPastTwoToThe31) {
  constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 4096;
  const SparseMemory o((static_cast<std::size_t>(kApart) + 4096) * 2);
  if (o.data() == nullptr) {
    GTEST_SKIP() << "4.3 GB of sparse memory is not to be had here";
  }
  std::vector<std::uint16_t> q(2 * 64), kv(2 * 3 * 64, kOne);
  TensorView out = TensorView::bshd(o.data(), DType::kBFloat16, 2, 1, 1, 64);
  out.strides[0] = kApart;
  const TensorView in = TensorView::bshd(q.data(), DType::kBFloat16, 2, 1, 1, 64);
  const TensorView k = TensorView::bshd(kv.data(), DType::kBFloat16, 2, 3, 1, 64);
  for (const PlanOptions& plan : all_plans(problem_of(in, k, k), Kernels::kChosen)) {
    o.data()[0] = o.data()[kApart] = 0;
    const Status status = testing::call(plan, in, k, k, out);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(o.data()[0], kOne) << name_of(plan);
    EXPECT_EQ(o.data()[kApart + 63], kOne) << name_of(plan);
    EXPECT_EQ(o.data()[64], 0) << "between the entries nothing is written";
  }
}

// pytorch/pytorch#142228; facebookresearch/xformers#845; Dao-AILab/flash-attention#1786: more than 65535
// batches, heads or query tiles in a launch: an error, or no launch and no error. Zero logits, V from the
// entry's own index.
std::uint16_t small_integer(std::int64_t n) {
  return core::float_to_bf16(static_cast<float>(n % 128));
}

TEST(PublicReports, PyTorch142228_65536Batches) {
  constexpr std::int64_t kB = 65536, kS = 16, kD = 80;
  std::vector<std::uint16_t> zero(kS * kD), v(kB * kD), o(kB * kS * kD, 0x7FA5);
  for (std::int64_t b = 0; b < kB; ++b) {
    std::fill_n(v.begin() + b * kD, kD, small_integer(b));
  }
  TensorView q = TensorView::bshd(zero.data(), DType::kBFloat16, kB, kS, 1, kD);
  q.strides[0] = 0;
  TensorView values = TensorView::bshd(v.data(), DType::kBFloat16, kB, kS, 1, kD);
  values.strides = {kD, 0, kD, 1};
  for (const PlanOptions& plan : one_plan_a_backend(problem_of(q, q, values))) {
    std::fill(o.begin(), o.end(), std::uint16_t{0x7FA5});
    const Status status =
        testing::call(plan, q, q, values, TensorView::bshd(o.data(), DType::kBFloat16, kB, kS, 1, kD));
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t b = 0; b < kB; ++b) {
      for (const std::int64_t at : {std::int64_t{0}, kS * kD - 1}) {
        ASSERT_EQ(o[static_cast<std::size_t>(b * kS * kD + at)], small_integer(b))
            << name_of(plan) << ", batch entry " << b;
      }
    }
  }
}

TEST(PublicReports, PyTorch142228_65536Heads) {
  constexpr std::int64_t kH = 65536, kS = 10, kD = 16;
  std::vector<std::uint16_t> zero(kS * kH * kD), v(kS * kH * kD), o(kS * kH * kD, 0x7FA5);
  for (std::int64_t n = 0; n < kS * kH; ++n) {
    std::fill_n(v.begin() + n * kD, kD, small_integer(n % kH));
  }
  const auto view = [&](const std::vector<std::uint16_t>& x) {
    return TensorView::bshd(x.data(), DType::kBFloat16, 1, kS, kH, kD);
  };
  for (const PlanOptions& plan : one_plan_a_backend(problem_of(view(zero), view(zero), view(v)))) {
    std::fill(o.begin(), o.end(), std::uint16_t{0x7FA5});
    const Status status = testing::call(plan, view(zero), view(zero), view(v), view(o));
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t n = 0; n < kS * kH; ++n) {
      ASSERT_EQ(o[static_cast<std::size_t>(n * kD + n % kD)], small_integer(n % kH))
          << name_of(plan) << ", head " << n % kH;
    }
  }
}

TEST(PublicReports, PyTorch142228_4194241Queries) {
  constexpr std::int64_t kSq = 64 * 65535 + 1, kSk = 16, kD = 16;
  // Query i looks at key i mod 16 alone: q is 64 times a unit vector, keys are the 16 unit vectors, V = key
  // index.
  std::vector<std::uint16_t> unit(kSk * kD), v(kSk * kD), q(kSq * kD), o(kSq * kD, 0x7FA5);
  for (std::int64_t j = 0; j < kSk; ++j) {
    unit[static_cast<std::size_t>(j * kD + j)] = kOne;
    std::fill_n(v.begin() + j * kD, kD, small_integer(j + 1));
  }
  for (std::int64_t i = 0; i < kSq; ++i) {
    q[static_cast<std::size_t>(i * kD + i % kSk)] = core::float_to_bf16(256.0F);
  }
  const auto view = [](const std::vector<std::uint16_t>& x, std::int64_t s) {
    return TensorView::bshd(x.data(), DType::kBFloat16, 1, s, 1, kD);
  };
  for (const PlanOptions& plan :
       one_plan_a_backend(problem_of(view(q, kSq), view(unit, kSk), view(v, kSk)))) {
    std::fill(o.begin(), o.end(), std::uint16_t{0x7FA5});
    const Status status = testing::call(plan, view(q, kSq), view(unit, kSk), view(v, kSk), view(o, kSq));
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t i = 0; i < kSq; ++i) {
      ASSERT_EQ(o[static_cast<std::size_t>(i * kD + i % kD)], small_integer(i % kSk + 1))
          << name_of(plan) << ", query " << i;
    }
  }
}

TEST(PublicReports, FlashAttention1786_65536PackedSequences) {
  expect_line(
      "b65536 hq2 hk1 sq257 sk257 d16 bf16 causal=br varlen_kv=0 lse lens_q=129,1x65531,2,3,257,1 "
      "lens_kv=257,1x65531,3,129,2,1");
}

}  // namespace
}  // namespace attn::testing
