// attn::forward: the problem is read off the views, options pass through, plans are cached and follow the
// environment of the moment; a forked child does not wait for a thread that it does not have.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

namespace {

using attn::DType;
using attn::ForwardOptions;
using attn::TensorView;

TEST(Forward, CausalBottomRightByHand) {
  const std::vector<float> q(16, 0.0F);
  const std::vector<float> k(40, 0.0F);
  std::vector<float> v;
  for (int j = 0; j < 5; ++j) {
    v.insert(v.end(), 8, static_cast<float>(j));
  }
  std::vector<float> o(16, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> lse(2, std::numeric_limits<float>::quiet_NaN());
  ForwardOptions options;
  options.causal = true;
  options.alignment = attn::Alignment::kBottomRight;
  options.lse = TensorView::lse(lse.data(), 1, 1, 2);
  const attn::Status status = attn::forward(TensorView::bshd(q.data(), DType::kFloat32, 1, 2, 1, 8),
                                            TensorView::bshd(k.data(), DType::kFloat32, 1, 5, 1, 8),
                                            TensorView::bshd(v.data(), DType::kFloat32, 1, 5, 1, 8),
                                            TensorView::bshd(o.data(), DType::kFloat32, 1, 2, 1, 8), options);
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t c = 0; c < 8; ++c) {
    EXPECT_FLOAT_EQ(o[c], 1.5F);
    EXPECT_FLOAT_EQ(o[8 + c], 2.0F);
  }
  EXPECT_FLOAT_EQ(lse[0], std::log(4.0F));
  EXPECT_FLOAT_EQ(lse[1], std::log(5.0F));
}

// Each option changes the result: none is accepted and dropped.
TEST(Forward, EveryOptionHasAnEffect) {
  std::vector<float> q(8);
  std::vector<float> k(64);
  std::vector<float> v(64);
  for (std::size_t n = 0; n < 64; ++n) {
    q[n % 8] = static_cast<float>(n % 8) - 2.0F;
    k[n] = std::sin(static_cast<float>(n));
    v[n] = std::cos(static_cast<float>(3 * n));
  }
  const float sink = 1.0F;
  const float slope = 0.5F;
  const auto result = [&](const ForwardOptions& options) {
    std::vector<float> o(8, -1.0F);
    const attn::Status status =
        attn::forward(TensorView::bshd(q.data(), DType::kFloat32, 1, 1, 1, 8),
                      TensorView::bshd(k.data(), DType::kFloat32, 1, 8, 1, 8),
                      TensorView::bshd(v.data(), DType::kFloat32, 1, 8, 1, 8),
                      TensorView::bshd(o.data(), DType::kFloat32, 1, 1, 1, 8), options);
    EXPECT_TRUE(status.ok()) << status.message();
    return o;
  };
  const std::vector<float> plain = result({});
  ForwardOptions options;
  options.softmax_scale = 0.9F;
  EXPECT_NE(result(options), plain);
  options = {};
  options.causal = true;
  options.alignment = attn::Alignment::kTopLeft;
  EXPECT_NE(result(options), plain);
  options = {};
  options.alignment = attn::Alignment::kBottomRight;
  options.window_left = 3;
  EXPECT_NE(result(options), plain);
  options.window_left = -1;
  options.alignment = attn::Alignment::kTopLeft;
  options.window_right = 3;
  EXPECT_NE(result(options), plain);
  options = {};
  options.softcap = 0.5F;
  EXPECT_NE(result(options), plain);
  options = {};
  options.sinks = &sink;
  EXPECT_NE(result(options), plain);
  options = {};
  options.alibi_slopes = &slope;
  options.alignment = attn::Alignment::kBottomRight;
  EXPECT_NE(result(options), plain);
}

TEST(Forward, WindowWithoutAlignmentIsRefusedAndWritesNothing) {
  std::vector<float> data(8, 0.0F);
  std::vector<float> o(8, -1.0F);
  const TensorView view = TensorView::bshd(data.data(), DType::kFloat32, 1, 1, 1, 8);
  ForwardOptions options;
  options.window_left = 0;
  const attn::Status status =
      attn::forward(view, view, view, TensorView::bshd(o.data(), DType::kFloat32, 1, 1, 1, 8), options);
  EXPECT_EQ(status.code(), attn::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("alignment is unset"), std::string::npos) << status.message();
  EXPECT_EQ(o, std::vector<float>(8, -1.0F));
}

TEST(Forward, FollowsTheEnvironmentOfTheMoment) {
  std::vector<float> data(8, 1.0F);
  std::vector<float> o(8, -1.0F);
  const TensorView view = TensorView::bshd(data.data(), DType::kFloat32, 1, 1, 1, 8);
  const TensorView out = TensorView::bshd(o.data(), DType::kFloat32, 1, 1, 1, 8);
  ForwardOptions options;
  options.plan.backend = attn::Backend::kCpu;
  ASSERT_TRUE(attn::forward(view, view, view, out, options).ok());
  ::setenv("ATTN_CPU_LEVEL", "no-such-level", 1);
  const attn::Status refused = attn::forward(view, view, view, out, options);
  ::unsetenv("ATTN_CPU_LEVEL");
  EXPECT_FALSE(refused.ok()) << "a cached plan hid the level that the environment asks for";
  EXPECT_NE(refused.message().find("no-such-level"), std::string::npos) << refused.message();
  EXPECT_TRUE(attn::forward(view, view, view, out, options).ok());
}

TEST(Forward, ManyShapesAndThreadsShareTheCache) {
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (int& failed : failures) {
    threads.emplace_back([&failed] {
      for (std::int64_t seqlen = 1; seqlen <= 80; ++seqlen) {
        std::vector<float> data(static_cast<std::size_t>(seqlen) * 4, 1.0F);
        std::vector<float> o(data.size(), -1.0F);
        const TensorView view = TensorView::bshd(data.data(), DType::kFloat32, 1, seqlen, 1, 4);
        const TensorView out = TensorView::bshd(o.data(), DType::kFloat32, 1, seqlen, 1, 4);
        failed += !attn::forward(view, view, view, out).ok() || o != data;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failures, std::vector<int>(4, 0));
}

// Threads that are inside the cache at the moment of fork() do not exist in the child, which must not wait
// for them: every child finishes, or SIGALRM ends it. (Without the cache's fork handlers about one in a
// hundred waited for ever.)
TEST(Forward, ChildrenOfForkDoNotWaitForTheParentsThreads) {
  const auto call = [](std::int64_t seqlen) {
    std::vector<float> data(static_cast<std::size_t>(seqlen) * 4, 1.0F);
    std::vector<float> o(data.size(), -1.0F);
    const TensorView view = TensorView::bshd(data.data(), DType::kFloat32, 1, seqlen, 1, 4);
    return attn::forward(view, view, view, TensorView::bshd(o.data(), DType::kFloat32, 1, seqlen, 1, 4))
               .ok() &&
           o == data;
  };
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (std::int64_t n = 0; n < 3; ++n) {
    threads.emplace_back([&stop, &call, n] {
      for (std::int64_t i = n; !stop; ++i) {
        (void)call(1 + i % 60);
      }
    });
  }
  int failed = 0;
  for (int n = 0; n < 300 && failed == 0; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      ::_exit(call(3) && call(1 + n % 60) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    failed += status == 0 ? 0 : 1;
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failed, 0);
}

}  // namespace
