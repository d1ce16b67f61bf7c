// The judge against broken backends: each runs correctly and then does one wrong thing, which must be
// reported in words that say what and where. A judge that lets one of these pass proves nothing by passing
// the others.
#include "support.hpp"
#include "verify/rows.hpp"

namespace attn::testing {
namespace {

using Damage = std::function<void(verify::Buffers&)>;

verify::Runner damaged(Damage damage) {
  return [damage = std::move(damage)](verify::Buffers& buffers, const PlanOptions& options, std::uint8_t fill,
                                      verify::RunInfo* info) {
    Status status = verify::host_runner()(buffers, options, fill, info);
    damage(buffers);
    return status;
  };
}

void store(const TensorView& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t c, float value) {
  core::store_element(t.data, t.dtype, b * t.strides[0] + s * t.strides[1] + h * t.strides[2] + c, value);
}
float load(const TensorView& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t c) {
  return core::load_element(t.data, t.dtype, b * t.strides[0] + s * t.strides[1] + h * t.strides[2] + c);
}
void store_lse(const Tensors& t, std::int64_t h, std::int64_t i, float value) {
  core::store_element(t.lse.data, DType::kFloat32, h * t.lse.strides[1] + i * t.lse.strides[2], value);
}

void expect_caught(const std::string& line, const char* words, const Damage& damage) {
  const verify::Case c = case_of(line);
  const verify::Report good = verify::check(c, cpu_plan());
  ASSERT_TRUE(good.passed) << good.failure;
  const verify::Report report = verify::check(c, cpu_plan(), {}, damaged(damage));
  EXPECT_FALSE(report.passed) << line;
  EXPECT_FALSE(report.refused);
  EXPECT_NE(report.failure.find(words), std::string::npos)
      << "wanted: " << words << "\n  got: " << report.failure;
  EXPECT_EQ(report.line, verify::to_string(c));
}

constexpr const char* kPlain = "b2 hq2 hk1 sq9 sk30 d8 fp32 causal=br lse";

TEST(Judge, CatchesAnErrorBeyondTheBound) {
  expect_caught(kPlain, "O at sequence 1, head 1, row 3, channel 5", [](verify::Buffers& b) {
    const TensorView& o = b.tensors().o;
    store(o, 1, 3, 1, 5, load(o, 1, 3, 1, 5) + 4e-5F);
  });
  expect_caught(
      "b2 hq2 hk1 sq9 sk30 d8 bf16 lse", "O at sequence 0, head 0, row 0, channel 0",
      [](verify::Buffers& b) { store(b.tensors().o, 0, 0, 0, 0, load(b.tensors().o, 0, 0, 0, 0) + 0.05F); });
}

TEST(Judge, CatchesALogarithmOfBaseTwo) {
  expect_caught(kPlain, "LSE at sequence 0, head 0, row 0", [](verify::Buffers& b) {
    auto* lse = static_cast<float*>(b.tensors().lse.data);
    for (std::int64_t n = 0; n < b.tensors().lse.num_elements(); ++n) {
      lse[n] *= 1.44269504F;
    }
  });
}

TEST(Judge, CatchesNaNAndInf) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    expect_caught(kPlain, "O at sequence 1, head 0, row 8, channel 7",
                  [bad](verify::Buffers& b) { store(b.tensors().o, 1, 8, 0, 7, bad); });
    expect_caught(kPlain, "LSE at sequence 0, head 1, row 4",
                  [bad](verify::Buffers& b) { store_lse(b.tensors(), 1, 4, bad); });
  }
}

TEST(Judge, CatchesAFiniteValueWhereNaNIsRight) {
  // Keys 0 and 1 are −inf and NaN: some rows are NaN, and a silent 0 there is wrong.
  const std::string line = "b1 hq1 hk1 sq40 sk40 d4 fp32 causal=br lse data=nonfinite seed=3";
  const verify::Case c = case_of(line);
  verify::Judge judge(c, {});
  ASSERT_TRUE(judge.check(verify::host_runner(), cpu_plan()).passed);
  const Tensors& t = judge.buffers().tensors();
  bool found = false;
  for (std::int64_t i = 0; i < 40 && !found; ++i) {
    if (std::isnan(load(t.o, 0, i, 0, 1))) {
      store(t.o, 0, i, 0, 1, 0.0F);
      found = true;
    }
  }
  ASSERT_TRUE(found) << "the case must hold a NaN row for this test to mean anything";
  EXPECT_FALSE(judge.compare().passed);
}

TEST(Judge, CatchesEmptyRowsThatAreAlmostEmpty) {
  constexpr const char* kEmpty = "b1 hq2 hk1 sq9 sk3 d8 fp32 causal=br lse";  // rows 0 to 5 see nothing
  expect_caught(kEmpty, "an empty row is exactly 0",
                [](verify::Buffers& b) { store(b.tensors().o, 0, 2, 1, 3, 1e-30F); });
  expect_caught(kEmpty, "LSE at sequence 0, head 0, row 5",
                [](verify::Buffers& b) { store_lse(b.tensors(), 0, 5, -5e4F); });
  expect_caught(kEmpty, "LSE at sequence 0, head 0, row 5",
                [](verify::Buffers& b) { store_lse(b.tensors(), 0, 5, -3.4e38F); });
}

TEST(Judge, CatchesRowsThatWereNotWritten) {
  expect_caught(kPlain, "o at sequence 1, head 0, row 4, channel 2 was not written", [](verify::Buffers& b) {
    const std::uint32_t bits = verify::Buffers::poison_bits(DType::kFloat32);
    const TensorView& o = b.tensors().o;
    std::memcpy(static_cast<float*>(o.data) + o.strides[0] + 4 * o.strides[1] + 2, &bits, 4);
  });
  expect_caught(
      kPlain, "lse at sequence 0, head 1, row 8, channel 0 was not written", [](verify::Buffers& b) {
        const std::uint32_t bits = verify::Buffers::poison_bits(DType::kFloat32);
        std::memcpy(static_cast<float*>(b.tensors().lse.data) + b.tensors().lse.strides[1] + 8, &bits, 4);
      });
}

TEST(Judge, CatchesWritesOutsideRows) {
  expect_caught("b2 hq2 hk1 sq9 sk30 d8 fp16 lse layout=gaps", "o was written outside its rows",
                [](verify::Buffers& b) { store(b.tensors().o, 0, 0, 0, 8, 0.0F); });
  expect_caught("b2 hq2 hk1 sq9 sk30 d8 fp16 lse layout=gaps", "lse was written outside its rows",
                [](verify::Buffers& b) { static_cast<float*>(b.tensors().lse.data)[1] = 0.0F; });
  // A slack row of a packed O.
  expect_caught("b2 hq2 hk1 sq9 sk30 d8 fp16 lse lens_q=9,3", "o was written outside its rows",
                [](verify::Buffers& b) { store(b.tensors().o, 0, 12, 0, 0, 0.0F); });
  expect_caught("b1 hq1 hk1 sq4 sk30 d8 fp32 offset=3", "o was written outside its rows",
                [](verify::Buffers& b) { static_cast<float*>(b.tensors().o.data)[-1] = 0.0F; });
}

TEST(Judge, CatchesBrokenGuards) {
  for (const char* name : {"o", "lse", "q", "k", "v"}) {
    const std::string words = std::string("the guard of ") + name + " (";
    expect_caught(kPlain, words.c_str(),
                  [name](verify::Buffers& b) { b.find(name)->payload()[-3] = std::byte{0}; });
    expect_caught(kPlain, words.c_str(), [name](verify::Buffers& b) {
      b.find(name)->payload()[b.find(name)->payload_bytes() + 100] = std::byte{0};
    });
  }
}

TEST(Judge, CatchesChangedInputs) {
  expect_caught(kPlain, "input k was changed at byte 12",
                [](verify::Buffers& b) { b.find("k")->payload()[12] ^= std::byte{1}; });
  expect_caught("b2 hq2 hk1 sq9 sk30 d8 fp32 lens_kv=3,9", "input seqused_kv was changed",
                [](verify::Buffers& b) { b.find("seqused_kv")->payload()[4] ^= std::byte{1}; });
}

TEST(Judge, CatchesWrongCaches) {
  constexpr const char* kAppend =
      "b2 hq2 hk1 sq3 sk30 d8 bf16 causal=br new=3 rotary=8,half lse lens_kv=20,0";
  // The first appended key, and a byte that no append touches.
  expect_caught(kAppend, "cache k differs from a plain append",
                [](verify::Buffers& b) { b.find("k")->payload()[20 * 8 * 2] ^= std::byte{1}; });
  expect_caught(kAppend, "cache v differs from a plain append",
                [](verify::Buffers& b) { b.find("v")->payload()[29 * 8 * 2] ^= std::byte{1}; });
  expect_caught(kAppend, "input k_new was changed",
                [](verify::Buffers& b) { b.find("k_new")->payload()[0] ^= std::byte{1}; });
}

TEST(Judge, CatchesResultsThatDoNotRepeat) {
  int calls = 0;
  const verify::Runner runner = damaged([&calls](verify::Buffers& b) {
    const TensorView& o = b.tensors().o;
    store(o, 0, 0, 0, 0, load(o, 0, 0, 0, 0) * (1.0F + 1e-7F * static_cast<float>(calls++)));
  });
  verify::CheckOptions options;
  options.bitwise = true;
  const verify::Report report = verify::check(case_of(kPlain), cpu_plan(), options, runner);
  EXPECT_FALSE(report.passed);
  EXPECT_NE(report.failure.find("o has other bits in a second call"), std::string::npos) << report.failure;
}

TEST(Judge, CatchesAWorkspaceOverrun) {
  const verify::Runner runner = [](verify::Buffers& buffers, const PlanOptions& options, std::uint8_t fill,
                                   verify::RunInfo* info) {
    Status status = verify::host_runner()(buffers, options, fill, info);
    info->guard_failure = "the guard of the workspace (0 bytes) was written at byte 0";
    return status;
  };
  const verify::Report report = verify::check(case_of(kPlain), cpu_plan(), {}, runner);
  EXPECT_FALSE(report.passed);
  EXPECT_NE(report.failure.find("workspace"), std::string::npos);
}

TEST(Judge, RefusalsAreNeitherPassedNorFailed) {
  const verify::Runner refusing = [](verify::Buffers&, const PlanOptions&, std::uint8_t, verify::RunInfo*) {
    return Status(StatusCode::kUnsupported, "head_dim_qk is 8; allowed: 64");
  };
  const verify::Report report = verify::check(case_of(kPlain), {}, {}, refusing);
  EXPECT_FALSE(report.passed);
  EXPECT_TRUE(report.refused);
  EXPECT_NE(report.failure.find("head_dim_qk is 8"), std::string::npos);
  const verify::Runner failing = [](verify::Buffers&, const PlanOptions&, std::uint8_t, verify::RunInfo*) {
    return Status(StatusCode::kInternal, "lost");
  };
  EXPECT_FALSE(verify::check(case_of(kPlain), {}, {}, failing).refused);
}

TEST(Judge, CountsWhatItChecks) {
  const verify::Report report = verify::check(case_of(kPlain), cpu_plan());
  EXPECT_TRUE(report.passed) << report.failure;
  EXPECT_EQ(report.rows_checked, 2 * 2 * 9);
  EXPECT_GT(report.max_ratio_o, 0.0);
  EXPECT_LE(report.max_ratio_o, 1.0);
  EXPECT_FALSE(report.kernel.empty());
}

// Above max_scores: first and last rows, tile edges and random rows; an error in one of the named rows is
// seen.
TEST(Judge, ChoosesRowsOfLargeProblems) {
  verify::CheckOptions options;
  options.max_scores = 1000;
  options.random_rows = 10;
  const verify::Case c = case_of("b1 hq2 hk1 sq300 sk40 d8 fp32 lse");
  const verify::Report good = verify::check(c, cpu_plan(), options);
  EXPECT_TRUE(good.passed) << good.failure;
  // First and last of both heads, 63, 64, 127 … 256 of one head, and ten random ones, of which some may
  // repeat.
  EXPECT_GE(good.rows_checked, 4 + 2 * 4);
  EXPECT_LE(good.rows_checked, 4 + 2 * 4 + 10);
  for (const std::int64_t row : {0, 299}) {
    const verify::Report bad =
        verify::check(c, cpu_plan(), options,
                      damaged([row](verify::Buffers& b) { store(b.tensors().o, 0, row, 1, 0, 9.0F); }));
    EXPECT_FALSE(bad.passed) << row;
  }
  // What is not compared is still checked for having been written.
  const verify::Report unwritten = verify::check(
      c, cpu_plan(), options, damaged([](verify::Buffers& b) {
        const std::uint32_t bits = verify::Buffers::poison_bits(DType::kFloat32);
        std::memcpy(static_cast<float*>(b.tensors().o.data) + 77 * b.tensors().o.strides[1], &bits, 4);
      }));
  EXPECT_NE(unwritten.failure.find("row 77, channel 0 was not written"), std::string::npos)
      << unwritten.failure;
}

// Expected rows from the CPU backend are the reference's within fp32's own bound, with the same bounds beside
// them: over masks, options, layouts and data, visible NaN and Inf included.
TEST(Judge, RowsByTheCpuBackendAreTheReferences) {
  std::int64_t rows = 0;
  std::int64_t not_finite = 0;
  const auto compare = [&](const verify::Case& c) {
    const verify::Buffers buffers(c);
    const Problem& p = buffers.problem();
    const Tensors& t = buffers.tensors();
    const auto chosen = verify::choose_rows(p, t, {}, 1);
    const verify::ExpectedRows want = verify::expect_rows(p, t, chosen);
    const verify::ExpectedRows got = verify::expect_rows_by_cpu(p, t, chosen);
    ASSERT_EQ(got.rows, want.rows);
    for (std::size_t n = 0; n < want.rows.size(); ++n, ++rows) {
      const std::string place = verify::to_string(c) + " row " + std::to_string(n);
      const reference::Row& a = want.results[n];
      const reference::Row& b = got.results[n];
      const double epsilon = std::isfinite(a.logit_error) ? 0x1p-22 * a.logit_error : 1.0;
      if (std::isfinite(a.lse)) {
        ASSERT_NEAR(b.lse, a.lse, 1e-3 + 2e-6 * std::abs(a.lse) + epsilon) << place;
      } else {
        ASSERT_TRUE(std::isnan(a.lse) ? std::isnan(b.lse) : a.lse == b.lse) << place;
      }
      ASSERT_EQ(got.max_v[n], want.max_v[n]) << place;
      if (std::isfinite(a.logit_error)) {
        ASSERT_NEAR(b.logit_error, a.logit_error, 1e-4 * a.logit_error) << place;
      }
      for (std::int64_t c_o = 0; c_o < p.head_dim_v; ++c_o) {
        const std::size_t at = n * static_cast<std::size_t>(p.head_dim_v) + static_cast<std::size_t>(c_o);
        if (std::isfinite(want.o[at])) {
          ASSERT_NEAR(got.o[at], want.o[at], (4 * 0x1p-22 + 2 * epsilon) * want.max_v[n]) << place;
        } else {
          ASSERT_TRUE(std::isnan(want.o[at]) ? std::isnan(got.o[at]) : got.o[at] == want.o[at]) << place;
          ++not_finite;
        }
      }
    }
  };
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    compare(verify::random_case(seed, 16384, verify::Space::kDense));
  }
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const verify::Case c = verify::random_case(seed, 16384);
    if (c.problem.seqlen_new == 0) {  // the judge would have appended first
      compare(c);
    }
  }
  for (const char* line : {"b1 hq2 hk1 sq65 sk130 d64 bf16 causal=br lse data=nonfinite",
                           "b1 hq2 hk1 sq65 sk130 d64 fp16 lse data=nonfinite seed=3"}) {
    compare(case_of(line));
  }
  EXPECT_GT(rows, 1000);
  EXPECT_GT(not_finite, 100);
}

TEST(Judge, AgainstTheCpuBackendCatchesErrorsToo) {
  verify::CheckOptions options;
  options.against_cpu = true;
  for (const char* type : {"bf16", "fp16"}) {
    const verify::Case c =
        case_of("b2 hq2 hk1 sq9 sk30 d8 causal=br lse layout=negative offset=1 " + std::string(type));
    const verify::Report good = verify::check(c, cpu_plan(), options);
    ASSERT_TRUE(good.passed) << good.failure;
    EXPECT_EQ(good.rows_checked, 2 * 2 * 9);
    EXPECT_GT(good.max_ratio_o, 0.0);
    const verify::Report bad = verify::check(c, cpu_plan(), options, damaged([](verify::Buffers& b) {
                                               const TensorView& o = b.tensors().o;
                                               store(o, 1, 3, 1, 5, load(o, 1, 3, 1, 5) + 0.05F);
                                             }));
    EXPECT_NE(bad.failure.find("O at sequence 1, head 1, row 3, channel 5"), std::string::npos)
        << bad.failure;
    const verify::Report bad_lse = verify::check(
        c, cpu_plan(), options, damaged([](verify::Buffers& b) { store_lse(b.tensors(), 0, 2, 5.0F); }));
    EXPECT_NE(bad_lse.failure.find("LSE at "), std::string::npos) << bad_lse.failure;
  }
}

// each_kernel names kernels that make_plan takes, the one first that it takes unasked.
TEST(Judge, EachKernelOfTheCpuBackend) {
  Problem p;
  ASSERT_TRUE(parse("b1 hq2 hk1 sq300 sk300 d64 bf16", &p).ok());
  const std::vector<PlanOptions> plans = verify::each_kernel(p, cpu_plan());
  ASSERT_FALSE(plans.empty());
  Plan unasked;
  ASSERT_TRUE(make_plan(p, cpu_plan(), &unasked).ok());
  for (std::size_t n = 0; n < plans.size(); ++n) {
    Plan plan;
    const Status status = make_plan(p, plans[n], &plan);
    ASSERT_TRUE(status.ok()) << plans[n].kernel << ": " << status.message();
    if (n == 0) {
      EXPECT_EQ(plan.kernel(), unasked.kernel());
    }
  }
}

TEST(Judge, ComparesResultsHeldByTheCaller) {
  verify::Buffers buffers(case_of(kPlain));
  verify::RunInfo info;
  ASSERT_TRUE(verify::host_runner()(buffers, cpu_plan(), 0, &info).ok());
  EXPECT_TRUE(verify::compare_with_reference(buffers.problem(), buffers.tensors()).passed);
  store(buffers.tensors().o, 0, 0, 0, 0, 77.0F);
  EXPECT_FALSE(verify::compare_with_reference(buffers.problem(), buffers.tensors()).passed);
}

}  // namespace
}  // namespace attn::testing
