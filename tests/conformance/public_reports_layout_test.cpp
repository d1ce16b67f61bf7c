// Strides and alignment, from public reports.
#include "support.hpp"

namespace attn::testing {
namespace {

// Results of the line with a layout, and of the compact one: right, and the same bits by the same kernel.
void expect_layout_does_not_matter(const std::string& line, const std::string& layout) {
  expect_line(line + layout);
  for (const PlanOptions& plan : all_plans(line)) {
    EXPECT_TRUE(same_bits(values_of(line + layout, plan), values_of(line, plan)))
        << name_of(plan) << ": " << line << layout;
  }
}

// ROCm/pytorch#3230; flagos-ai/FlagGems#5896; pytorch/pytorch#191937, #139424: V read as if contiguous when
// it was a transposed view; broadcast K/V wrong when the key length is 1 more than a multiple of 32.
TEST(PublicReports, RocmPyTorch3230_TransposedV) {
  for (const char* type : kDTypes) {
    // (a): Q and K contiguous as (B, H, L, D), V a view of (1, 62, 16 · 128): here each tensor has both
    // orders in turn.
    const verify::Case bhsd = case_of(std::string("hq16 hk16 sq62 sk62 d128 lse layout=bhsd ") + type);
    for (const PlanOptions& plan : all_plans(bhsd.problem)) {
      verify::Buffers heads_first(bhsd);
      verify::Case compact = bhsd;
      compact.layout = verify::Layout::kBshd;
      verify::Buffers rows_first(compact);
      Tensors mixed = heads_first.tensors();
      mixed.v = rows_first.tensors().v;
      ASSERT_TRUE(verify::call(bhsd.problem, plan, mixed).ok());
      verify::RunInfo info;
      ASSERT_TRUE(verify::host_runner()(rows_first, plan, 0xFF, &info).ok());
      EXPECT_TRUE(same_bits(Results(heads_first).all(), Results(rows_first).all()))
          << name_of(plan) << " " << type;
    }
  }
}

TEST(PublicReports, RocmPyTorch3230_BroadcastHeadsAndBatches) {
  int turn = 0;
  for (const std::int64_t sk : {33, 65, 97, 1025}) {
    for (const char* layout : {" layout=bcast_heads", " layout=bcast_batch"}) {
      expect_line("b2 hq8 hk8 sq5 d64 lse sk" + std::to_string(sk) + " " + kDTypes[turn++ % 3] + layout);
    }
  }
}

// All keys are one key: O is the one V row, LSE = logit + ln Sk.
TEST(PublicReports, RocmPyTorch3230_BroadcastKeys) {
  for (const char* type : kDTypes) {
    for (const std::int64_t sk : {1, 33, 65, 1025}) {
      const Fills fills{constant(1), constant(0.5), [](const verify::RowId& id, std::int64_t c) {
                          return static_cast<float>(id.h) + static_cast<float>(c) * 0.25F;
                        }};
      run_plans("b2 hq4 hk2 sq9 d64 lse layout=bcast_keys sk" + std::to_string(sk) + " " + type, fills,
                [&](const Results& r) {
                  for (std::int64_t c = 0; c < 64; c += 21) {
                    EXPECT_EQ(r.o(1, 3, 8, c), 1.0 + 0.25 * static_cast<double>(c));
                    EXPECT_EQ(r.o(0, 1, 0, c), 0.25 * static_cast<double>(c));
                  }
                  EXPECT_NEAR(r.lse(1, 2, 3), 4.0 + std::log(static_cast<double>(sk)), 1e-5);
                });
    }
  }
}

TEST(PublicReports, RocmPyTorch3230_InterleavedAndStridedOutputs) {
  for (const char* type : kDTypes) {
    for (const char* layout :
         {" layout=interleaved", " layout=gaps", " layout=bhsd", " layout=negative", " layout=unit"}) {
      expect_layout_does_not_matter(std::string("b2 hq4 hk4 sq77 sk77 d64 lse causal=br ") + type, layout);
      expect_layout_does_not_matter(std::string("b1 hq1 hk1 sq33 sk65 d72 lse ") + type, layout);
    }
  }
}

// pytorch/pytorch#170813; flashinfer-ai/flashinfer PR#4543; tile-ai/tilelang#460; analogous Jim137/qkan#26: a
// contiguous view that starts 2 bytes into a buffer, or a row pitch that is no multiple of 16 bytes, killed
// the process's context.
TEST(PublicReports, PyTorch170813_BasesInsideAVector) {
  for (const char* type : kDTypes) {
    for (const char* offset : {"1", "2", "4", "7"}) {
      expect_layout_does_not_matter(std::string("b2 hq3 hk3 sq77 sk77 d128 lse ") + type,
                                    std::string(" offset=") + offset);
    }
  }
}

// Each of Q, K, V and O in turn at an odd base, with the row pitch of the report; then an ordinary call.
TEST(PublicReports, PyTorch170813_OneOddTensorAtATime) {
  constexpr std::int64_t kB = 2, kH = 3, kS = 77, kD = 128;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const std::size_t size = size_of(dtype);
    std::vector<std::byte> memory[4];
    for (std::vector<std::byte>& bytes : memory) {
      bytes.resize((kB * kS * kH * 136 + 64) * size);
    }
    const auto view = [&](std::size_t n, std::int64_t base, std::int64_t pitch) {
      auto at = (reinterpret_cast<std::uintptr_t>(memory[n].data()) + 63) / 64 * 64;
      auto* data = reinterpret_cast<std::byte*>(at) + base * static_cast<std::int64_t>(size);
      TensorView t{data, dtype, {kB, kS, kH, kD}, {kS * kH * pitch, kH * pitch, pitch, 1}};
      return t;
    };
    const auto fill = [&](const TensorView& t, std::uint64_t stream) {
      for (std::int64_t r = 0; r < kB * kS * kH; ++r) {
        for (std::int64_t c = 0; c < kD; ++c) {
          const double x = static_cast<double>(
              (static_cast<std::uint64_t>(r * kD + c) * 2654435761U + stream * 40503U) % 1000);
          core::store_element(t.data, dtype, r * t.strides[2] + c, static_cast<float>(x / 500.0 - 1.0));
        }
      }
    };
    const auto call = [&](std::int64_t odd, std::int64_t base, std::int64_t pitch, const PlanOptions& plan) {
      TensorView t[4];
      for (std::size_t n = 0; n < 4; ++n) {
        const bool is_odd = static_cast<std::int64_t>(n) == odd;
        t[n] = view(n, is_odd ? base : 0, is_odd ? pitch : kD);
        if (n < 3) {
          fill(t[n], n);
        }
      }
      const Status status = testing::call(plan, t[0], t[1], t[2], t[3]);
      EXPECT_TRUE(status.ok()) << status.message();
      std::vector<float> o;
      for (std::int64_t r = 0; r < kB * kS * kH; ++r) {
        for (std::int64_t c = 0; c < kD; ++c) {
          o.push_back(core::load_element(t[3].data, dtype, r * t[3].strides[2] + c));
        }
      }
      return o;
    };
    const TensorView any = view(0, 0, kD);
    for (const PlanOptions& plan : all_plans(problem_of(any, any, any))) {
      const std::vector<float> plain = call(-1, 0, kD, plan);
      for (std::int64_t odd = 0; odd < 4; ++odd) {
        for (const std::int64_t base : {1, 2, 4, 7}) {
          EXPECT_TRUE(same_bits(call(odd, base, kD, plan), plain))
              << name_of(plan) << " " << odd << " " << base;
        }
        for (const std::int64_t pitch : {129, 132, 136}) {
          EXPECT_TRUE(same_bits(call(odd, 0, pitch, plan), plain))
              << name_of(plan) << " " << odd << " " << pitch;
        }
      }
      EXPECT_TRUE(same_bits(call(-1, 0, kD, plan), plain)) << "an ordinary call after the odd ones";
    }
  }
}

}  // namespace
}  // namespace attn::testing
