// The number of threads follows affinity, quota and request; the team runs every worker once; a forked child
// computes the same bits and does not hang.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "cpu/cgroup.hpp"
#include "cpu/threads.hpp"
#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

TEST(CpuQuota, FileContents) {
  EXPECT_EQ(parse_cpu_max("200000 100000\n"), 2.0);
  EXPECT_EQ(parse_cpu_max("50000 100000\n"), 0.5);
  EXPECT_FALSE(parse_cpu_max("max 100000\n").has_value());
  for (const char* bad : {"", "max", "100000", "-1 100000", "100000 0", "1e5 100000", "100000 100000x"}) {
    EXPECT_FALSE(parse_cpu_max(bad).has_value()) << bad;
  }
  EXPECT_EQ(parse_cfs_quota("150000\n", "100000\n"), 1.5);
  EXPECT_FALSE(parse_cfs_quota("-1\n", "100000\n").has_value());
  EXPECT_FALSE(parse_cfs_quota("", "100000\n").has_value());
}

class CpuQuotaTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "attn_cgroup_" + std::to_string(getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(CpuQuotaTree, TheTightestGroupOnTheWayUpCounts) {
  write("/a/cpu.max", "150000 100000\n");
  write("/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_, "0::/a/b\n"), 1.5);
  write("/a/b/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpu_quota(root_, "0::/a/b\n"), 1.0);
  EXPECT_FALSE(cpu_quota(root_, "0::/other\n").has_value());
}

TEST_F(CpuQuotaTree, InsideAContainerTheRootHoldsTheQuota) {
  write("/cpu.max", "300000 100000\n");
  EXPECT_EQ(cpu_quota(root_, "0::/\n"), 3.0);
  EXPECT_EQ(cpu_quota(root_, "0::/docker/0123/not/visible/here\n"), 3.0);
}

TEST_F(CpuQuotaTree, VersionOne) {
  write("/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  write("/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_, "5:memory:/x\n4:cpu,cpuacct:/job\n"), 2.5);
  EXPECT_FALSE(cpu_quota(root_, "5:cpuset:/job\n").has_value());
  EXPECT_FALSE(cpu_quota(root_, "garbage\n\n::\n").has_value());
}

TEST(CpuThreads, AffinityAndRequestLimit) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(thread_limit(0), 1);
  EXPECT_LE(thread_limit(0), CPU_COUNT(&before));
  EXPECT_EQ(thread_limit(1), 1);
  EXPECT_EQ(thread_limit(1 << 30), thread_limit(0));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(thread_limit(0), 1);
  EXPECT_EQ(thread_limit(8), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(CpuThreads, EnvironmentCountsWhereTheCallerAsksForNone) {
  ThreadChoice choice;
  ASSERT_EQ(setenv("ATTN_NUM_THREADS", "1", 1), 0);
  ASSERT_TRUE(choose_threads(0, &choice).ok());
  EXPECT_EQ(choice.threads, 1);
  EXPECT_NE(choice.reason.find("ATTN_NUM_THREADS 1"), std::string::npos) << choice.reason;
  for (const char* bad : {"0", "-3", "two", "4.5", "99999999999", "2 "}) {
    ASSERT_EQ(setenv("ATTN_NUM_THREADS", bad, 1), 0);
    const Status status = choose_threads(0, &choice);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find(std::string("ATTN_NUM_THREADS is ") + bad), std::string::npos);
    EXPECT_TRUE(choose_threads(1, &choice).ok()) << "a request makes the environment irrelevant";
  }
  unsetenv("ATTN_NUM_THREADS");
}

void count_worker(void* context, int worker) {
  static_cast<std::atomic<int>*>(context)[worker].fetch_add(1);
}

TEST(CpuThreads, EveryWorkerRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const Team team;
    for (int workers = 0; workers <= threads; ++workers) {
      std::atomic<int> calls[8] = {};
      team.run(workers, &count_worker, calls);
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(calls[i].load(), i < workers ? 1 : 0);
      }
    }
  }
}

// Indices are bits of four words; those beyond are the caller's.
TEST(CpuThreads, EveryOneOfManyWorkersRunsOnce) {
  const Team team;
  for (const int workers : {63, 64, 65, 127, 128, 129, 192, 193, 255, 256, 257, 300}) {
    for (int call = 0; call < 20; ++call) {
      std::vector<std::atomic<int>> calls(301);
      team.run(workers, &count_worker, calls.data());
      for (int i = 0; i < 301; ++i) {
        ASSERT_EQ(calls[static_cast<std::size_t>(i)].load(), i < workers ? 1 : 0)
            << "worker " << i << " of " << workers;
      }
    }
  }
}

// Callers on teams of their own and on one together, more than the helpers serve at a time; each of their
// calls has its own counts, so that an index that is done twice, left out or given to another call shows.
TEST(CpuThreads, CallersBesideEachOther) {
  const Team shared;
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 12; ++caller) {
    callers.emplace_back([&, caller] {
      const Team own(caller % 3 != 0);
      for (int call = 0; call < 500; ++call) {
        std::atomic<int> calls[5] = {};
        const int workers = 2 + (caller + call) % 4;
        (caller % 2 == 0 ? shared : own).run(workers, &count_worker, calls);
        for (int i = 0; i < 5; ++i) {
          wrong += calls[i].load() == (i < workers ? 1 : 0) ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

// A body that calls again, as a caller's own parallel loop may: no worker waits for one that waits for it.
TEST(CpuThreads, BodiesMayCall) {
  std::atomic<int> calls[6] = {};
  Team().run(
      4,
      [](void* counts, int) {
        for (int i = 0; i < 100; ++i) {
          Team().run(6, &count_worker, counts);
        }
      },
      calls);
  for (const std::atomic<int>& count : calls) {
    EXPECT_EQ(count.load(), 400);
  }
}

// Helpers leave the CPU soon after the last call: 0.1 s of them, asleep within some hundred microseconds.
TEST(CpuThreads, HelpersDoNotWaitForLong) {
  std::atomic<int> calls[2] = {};
  for (int i = 0; i < 100; ++i) {
    Team().run(2, &count_worker, calls);
  }
  const std::clock_t before = std::clock();  // CPU time of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.03);
}

Problem threaded_problem() {
  Problem p;
  p.dtype = DType::kFloat32;
  p.batch = 2;
  p.seqlen_q = 190;
  p.seqlen_kv = 333;
  p.heads_q = 6;
  p.heads_kv = 2;
  p.head_dim_qk = 40;
  p.head_dim_v = 56;
  p.causal = true;
  p.alignment = Alignment::kBottomRight;
  p.want_lse = true;
  return p;
}

// More threads than CPUs cannot be asked for through a plan, so the machine's CPUs are the most that this
// compares; the team's own test above goes beyond.
// A helper that wakes on its caller's CPU moves off it: afterwards it may run where it might before.
TEST(CpuThreads, HelpersKeepTheirAffinity) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  std::atomic<int> different{0};
  struct Context {
    const cpu_set_t* all;
    std::atomic<int>* different;
  } context{&all, &different};
  for (int round = 0; round < 30; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // helpers fall asleep
    Team().run(
        4,
        [](void* pointer, int) {
          const auto& c = *static_cast<Context*>(pointer);
          cpu_set_t now;
          if (sched_getaffinity(0, sizeof(now), &now) != 0 || CPU_EQUAL(&now, c.all) == 0) {
            c.different->fetch_add(1);
          }
          std::this_thread::sleep_for(std::chrono::microseconds(200));  // long enough for helpers to come
        },
        &context);
  }
  EXPECT_EQ(different.load(), 0);
}

TEST(CpuThreads, ResultsDoNotDependOnTheirNumber) {
  Problem decode = threaded_problem();
  decode.seqlen_q = 1;
  decode.seqlen_kv = 5000;
  Problem split = threaded_problem();
  split.num_splits = 3;
  for (const Problem& p : {threaded_problem(), decode, split}) {
    for (const std::string& level : runnable_levels()) {
      DenseCase one(p);
      ASSERT_TRUE(one.run(cpu_options(level, 1)).ok());
      for (int threads = 2; threads <= thread_limit(4); ++threads) {
        DenseCase many(p);
        ASSERT_TRUE(many.run(cpu_options(level, threads)).ok());
        EXPECT_EQ(one.o, many.o) << level << " " << threads;
        EXPECT_EQ(std::memcmp(one.lse.data(), many.lse.data(), one.lse.size() * sizeof(float)), 0);
      }
    }
  }
}

// Decoding takes the heads of a sequence by turns, tile by tile; each has the bits of a call of its own.
TEST(CpuThreads, HeadsTogetherChangeNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = threaded_problem();
    p.dtype = dtype;
    p.batch = 2;
    p.seqlen_q = 2;
    p.seqlen_kv = 3000;
    p.heads_kv = 6;
    p.heads_q = 12;
    p.num_splits = 3;
    DenseCase all(p);
    Plan plan;
    ASSERT_TRUE(make_plan(p, cpu_options("", 1), &plan).ok());
    ASSERT_NE(plan.explain().find("6 heads by turns"), std::string::npos) << plan.explain();
    ASSERT_TRUE(all.run(cpu_options("", 1)).ok());
    for (std::int64_t h = 0; h < p.heads_kv; ++h) {
      Problem single = p;
      single.heads_kv = 1;
      single.heads_q = 2;
      DenseCase one(single);
      const auto head_of = [&](const TensorView& x, std::int64_t first, std::int64_t count) {
        TensorView view = x;
        view.data =
            static_cast<char*>(x.data) + first * x.strides[2] * static_cast<std::int64_t>(size_of(dtype));
        view.shape[2] = count;
        return view;
      };
      one.t.q = head_of(all.t.q, 2 * h, 2);
      one.t.k = head_of(all.t.k, h, 1);
      one.t.v = head_of(all.t.v, h, 1);
      ASSERT_TRUE(one.run(cpu_options("", 1)).ok());
      const std::size_t row = static_cast<std::size_t>(p.head_dim_v) * size_of(dtype);
      for (std::int64_t i = 0; i < p.batch * p.seqlen_q * 2; ++i) {
        const auto in_all = static_cast<std::size_t>(i / 2 * p.heads_q + 2 * h + i % 2);
        EXPECT_EQ(
            std::memcmp(all.o.data() + in_all * row, one.o.data() + static_cast<std::size_t>(i) * row, row),
            0)
            << "head " << h << " row " << i;
      }
    }
  }
}

TEST(CpuThreads, OnePlanServesSeveralCallersAtOnce) {
  const Problem p = threaded_problem();
  Plan plan;
  ASSERT_TRUE(make_plan(p, cpu_options(), &plan).ok());
  DenseCase expected(p);
  ASSERT_TRUE(expected.run(cpu_options()).ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      DenseCase mine(p);
      const Floats workspace(plan.workspace_bytes() / sizeof(float) + 1);
      for (int n = 0; n < 5; ++n) {
        const Status status = attn::run(plan, mine.t, workspace.data(), plan.workspace_bytes());
        wrong += !status.ok() || mine.o != expected.o ? 1 : 0;
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

// A child of fork() has none of the parent's worker threads. It must compute all the same: with a plan of its
// own and with the parent's.
TEST(CpuThreads, AForkedChildComputesTheSameBits) {
  const Problem p = threaded_problem();
  Plan plan;
  ASSERT_TRUE(make_plan(p, cpu_options(), &plan).ok());
  DenseCase parent(p);
  const Floats workspace(plan.workspace_bytes() / sizeof(float) + 1);
  ASSERT_TRUE(attn::run(plan, parent.t, workspace.data(), plan.workspace_bytes()).ok());
  EXPECT_FALSE(in_forked_child());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang ends by SIGALRM, which the parent sees
    if (!in_forked_child()) {
      _exit(2);
    }
    DenseCase again(p);
    if (!attn::run(plan, again.t, workspace.data(), plan.workspace_bytes()).ok() || again.o != parent.o) {
      _exit(3);
    }
    DenseCase own(p);
    if (!own.run(cpu_options()).ok() || own.o != parent.o || own.lse != parent.lse) {
      _exit(4);
    }
    plan = Plan();  // destroying the parent's team must not wait for workers either
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace attn::cpu
