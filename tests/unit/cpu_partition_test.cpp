// How many threads a call engages and how it is cut into tasks: few for small calls, even tasks, all threads
// where there is work for them; and that no bit of a result depends on it, up to 16 threads, whatever the
// machine has.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/partition.hpp"
#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

std::int64_t tasks_of(const Work& work, const Partition& cut) {
  return work.sequences * ((work.rows + cut.rows_per_task - 1) / cut.rows_per_task);
}

Work work(std::int64_t sequences, std::int64_t rows, double task_us, double row_us) {
  Work w;
  w.sequences = sequences;
  w.rows = rows;
  w.mean_rows = static_cast<double>(rows);
  w.task_rows = rows;
  w.block_rows = 14;
  w.granule = 2;
  w.task_us = task_us;
  w.row_us = row_us;
  w.longest_row_us = row_us;
  return w;
}

TEST(CpuPartition, ThreadsFollowFromTheWork) {
  // 12 tasks: 6 threads take two each, 4 three, 3 four; the first helper puts the end off by 3 µs, each
  // further one by 0.3.
  EXPECT_EQ(threads_worth(12, 15, 16), 12);  // 1.92 · 15 + 6 beside 2.83 · 15 + 4.2
  EXPECT_EQ(threads_worth(12, 100, 16), 12);
  EXPECT_EQ(threads_worth(12, 0.5, 16),
            4);  // 3.75 · 0.5 + 3.6 beside 12 · 0.5, 4.67 · 0.5 + 3.3, 2.83 · 0.5 + 4.2
  EXPECT_EQ(threads_worth(12, 0.25, 16), 1);
  EXPECT_EQ(threads_worth(12, 15, 5), 4) << "five would take as many turns";
  EXPECT_EQ(threads_worth(1, 1e6, 16), 1);
  EXPECT_EQ(threads_worth(0, 1e6, 16), 1);
  EXPECT_EQ(threads_worth(12, 0, 16), 1);
  EXPECT_EQ(threads_worth(2, 20, 2), 2);
  EXPECT_EQ(threads_worth(65, 1e4, 16), 16) << "many turns: all take part";
}

TEST(CpuPartition, MoreWorkIsWorthAsManyThreadsAtLeast) {
  for (const std::int64_t tasks : {1, 2, 7, 12, 16, 40, 64, 1000}) {
    for (const int at_hand : {1, 2, 3, 16, 128}) {
      int before = 1;
      for (double us = 0.25; us < 1e5; us *= 2) {
        const int now = threads_worth(tasks, us, at_hand);
        EXPECT_GE(now, before) << tasks << " tasks of " << us << " µs, " << at_hand;
        before = now;
      }
      EXPECT_GE(before * ((tasks + before - 1) / before), std::min<std::int64_t>(tasks, at_hand));
    }
  }
}

// Over many shapes: no more threads than there are, and than tasks; each has more work than its share of what
// helpers cost, or one alone would end sooner; no last turn for which a thread is there in vain. As a rule it
// is half a helper's 0.3 µs for each of the others, where half as many threads would take twice the turns.
TEST(CpuPartition, ThreadsHaveEvenWork) {
  std::mt19937 random(1);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  int engaged[17] = {};
  int with_less = 0;
  for (int n = 0; n < 20000; ++n) {
    const std::int64_t rows = 1 + below(n % 2 == 0 ? 100 : 5000);
    // One after the other: compilers draw arguments of a call in any order, A64's in another than x86-64's.
    const std::int64_t sequences = 1 + below(40);
    const double task_us = 0.1 * below(400);
    const double row_us = 0.01 * (1 + below(300));
    Work w = work(sequences, rows, task_us, row_us);
    w.task_rows = 1 + below(static_cast<int>(rows));
    w.longest_row_us = w.row_us * (1 + 0.01 * below(100));
    const int at_hand = n % 5 == 0 ? 2 : 16;
    const Partition cut = partition(w, at_hand);
    const std::int64_t tasks = tasks_of(w, cut);
    const int threads = cut.threads;
    ASSERT_GE(threads, 1);
    ASSERT_LE(threads, std::min<std::int64_t>(at_hand, tasks));
    ASSERT_GE(cut.rows_per_task, 1);
    if (threads > 1) {
      const double us =
          static_cast<double>(tasks) * w.task_us + static_cast<double>(w.sequences * rows) * w.row_us;
      ASSERT_GT(us / threads, 2.7 / (threads - 1) + 0.3) << us << " µs on " << threads;
      with_less += us / threads < 0.15 * (threads - 1) ? 1 : 0;
      const std::int64_t turns = (tasks + threads - 1) / threads;
      if (turns <= 3 && rows % cut.rows_per_task == 0) {
        ASSERT_GT((tasks + threads - 2) / (threads - 1), turns) << tasks << " tasks on " << threads;
      }
    }
    ++engaged[threads];
  }
  EXPECT_LE(with_less, 10);
  for (int n = 1; n <= 16; ++n) {
    EXPECT_GT(engaged[n], 0) << n;
  }
}

TEST(CpuPartition, RowsAreDividedWhereItPays) {
  // Eight heads of 128 rows against 128 keys, d 128: half of a head each, or two quarters.
  const Work fp32 = work(8, 128, 14, 1.16);
  const Partition divided = partition(fp32, 16);
  EXPECT_EQ(divided.threads, 16);
  EXPECT_EQ(tasks_of(fp32, divided) % 16, 0);
  EXPECT_EQ(128 % divided.rows_per_task, 0);
  // Where packing takes longer than the rows, they stay together.
  const Work packing = work(8, 128, 20, 0.05);
  EXPECT_EQ(partition(packing, 16).rows_per_task, 128);
  EXPECT_EQ(partition(packing, 16).threads, 8);
  // One head: cut until the threads have something to do, not beyond 28 rows.
  const Work one = work(1, 2048, 60, 3.8);
  EXPECT_EQ(partition(one, 1).rows_per_task, 2048);
  EXPECT_EQ(partition(one, 16).threads, 16);
  EXPECT_GE(tasks_of(one, partition(one, 16)), 32);
  EXPECT_GE(partition(work(1, 100, 0.1, 100), 64).rows_per_task, 28);
}

TEST(CpuPartition, LongCallsKeepTheRowsThatTheCachesLike) {
  Work w = work(128, 4096, 60, 3.8);  // eight tasks for each of 64 threads
  w.task_rows = 1024;
  for (const int threads : {1, 2, 16, 64}) {
    const Partition cut = partition(w, threads);
    EXPECT_EQ(cut.rows_per_task, 1036);  // 74 blocks of 14
    EXPECT_EQ(cut.threads, threads);
  }
}

// The last task, whose rows see most keys, is not much longer than a thread's share.
TEST(CpuPartition, CausalRowsAreDividedFiner) {
  Work full = work(8, 2048, 30, 1.9);
  Work causal = full;
  causal.longest_row_us = 3.8;
  const Partition cut = partition(causal, 16);
  const double blocks = std::ceil(2048.0 / static_cast<double>(cut.rows_per_task));
  const double longest = static_cast<double>(cut.rows_per_task) * (3.8 - 1.9 / blocks);
  EXPECT_EQ(cut.threads, 16);
  EXPECT_LT(longest, 1.2 * cut.us / 16);
  EXPECT_LE(cut.rows_per_task, partition(full, 16).rows_per_task);
}

// A sequence that is much longer than the others is cut, although there are tasks enough.
TEST(CpuPartition, TheLongestSequenceIsNoTaskOfItsOwn) {
  Work w = work(40, 4000, 10, 2);
  EXPECT_EQ(partition(w, 16).threads, 16);
  const std::int64_t alike = partition(w, 16).rows_per_task;
  w.mean_rows = 200;  // 40 · (10 + 200 · 2) µs, 16 threads: 1025 µs; the longest alone takes 8010
  EXPECT_EQ(partition(w, 16).threads, 16);
  EXPECT_LT(partition(w, 16).rows_per_task, 600);
  EXPECT_GE(alike, 1000);
}

// No more threads than have something to do beside the longest task: of 282 µs of work it takes 68, so that 5
// threads end it as soon as more.
TEST(CpuPartition, NoThreadsWaitForTheLongestTask) {
  Work w = work(19, 95, 6.5, 2.2);
  w.mean_rows = 3.8;
  EXPECT_EQ(partition(w, 24).threads, 5);
  EXPECT_EQ(partition(w, 24).rows_per_task, 28);
}

Problem problem_of(const char* text) {
  Problem p;
  const Status status = parse(text, &p);
  EXPECT_TRUE(status.ok()) << status.message();
  return p;
}

std::unique_ptr<BackendPlan> plan_on(const Problem& p, const std::string& level, int threads) {
  LevelChoice choice;
  EXPECT_TRUE(choose_level(level, &choice).ok());
  std::unique_ptr<BackendPlan> result;
  const Status status = plan(p, choice, ThreadChoice{threads, true, "test"}, &result);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}
const CpuPlan& as_cpu(const std::unique_ptr<BackendPlan>& plan) {
  return static_cast<const CpuPlan&>(*plan);
}

TEST(CpuPartition, OfPlans) {
  const auto threads = [](const char* text, int at_hand) {
    return as_cpu(plan_on(problem_of(text), "", at_hand)).threads;
  };
  EXPECT_EQ(threads("hq1 hk1 sq1 sk1 d16 fp32", 16), 1);
  EXPECT_EQ(threads("b0 hq8 hk8 sq2048 sk2048 d128 fp32", 16), 1);
  EXPECT_EQ(threads("hq8 hk8 sq2048 sk0 d128 fp32", 16), 1);
  EXPECT_EQ(threads("hq8 hk8 sq2048 sk2048 d128 fp32", 16), 16);
  EXPECT_EQ(threads("hq8 hk8 sq1 sk65536 d128 bf16", 16), 16);
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const std::string small = std::string("hq12 hk12 sq32 sk32 d64 ") + dtype;
    EXPECT_EQ(threads(small.c_str(), 2), 2);
    EXPECT_GE(threads(small.c_str(), 16), 2) << dtype;
    EXPECT_LE(threads(small.c_str(), 16), 12) << dtype;
  }
  const std::unique_ptr<BackendPlan> few = plan_on(problem_of("hq8 hk1 sq1 sk300 d128 fp32"), "", 16);
  const auto note = std::find_if(few->notes.begin(), few->notes.end(),
                                 [](const std::string& line) { return line.rfind("threads: ", 0) == 0; });
  ASSERT_NE(note, few->notes.end());
  EXPECT_NE(note->find("threads: 1 (test; about "), std::string::npos) << *note;
  EXPECT_NE(note->find(" µs of work are worth no more)"), std::string::npos) << *note;
  // Phases before and after the attention engage no more than it: they share its scratch.
  const std::unique_ptr<BackendPlan> split =
      plan_on(problem_of("b64 hq8 hk8 sq1 sk8192 d128 fp32 splits=32"), "", 16);
  EXPECT_GT(as_cpu(split).combine_threads, 1);
  EXPECT_LE(as_cpu(split).combine_threads, as_cpu(split).threads);
}

// The bits of O and LSE on a plan for so many threads, and how it cut the rows.
std::vector<unsigned char> bits_on(DenseCase& c, const std::string& level, int threads, std::int64_t* cut,
                                   int* engaged) {
  PlanImpl impl;
  impl.problem = c.p;
  impl.backend_plan = plan_on(c.p, level, threads);
  *cut = as_cpu(impl.backend_plan).rows_per_task;
  *engaged = as_cpu(impl.backend_plan).threads;
  const Floats workspace(impl.backend_plan->workspace_bytes / sizeof(float) + 1);
  std::fill(c.o.begin(), c.o.end(), 0x55);
  std::fill(c.lse.begin(), c.lse.end(), 12345.0F);
  EXPECT_TRUE(run(impl, c.t, workspace.data(), nullptr).ok());
  std::vector<unsigned char> bits(c.o.size() + c.lse.size() * sizeof(float));
  std::memcpy(bits.data(), c.o.data(), c.o.size());
  std::memcpy(bits.data() + c.o.size(), c.lse.data(), c.lse.size() * sizeof(float));
  return bits;
}

struct Differences {
  int of_bits = 0;
  int of_cuts = 0;
  int engaged = 0;  // most threads of any plan
};

Differences compare_threads(DenseCase& c) {
  Differences found;
  for (const std::string& level : runnable_levels()) {
    std::int64_t cut = 0;
    std::int64_t other_cut = 0;
    int engaged = 0;
    const std::vector<unsigned char> one = bits_on(c, level, 1, &cut, &engaged);
    for (const int threads : {2, 3, 7, 16}) {
      found.of_bits += bits_on(c, level, threads, &other_cut, &engaged) == one ? 0 : 1;
      found.of_cuts += other_cut == cut ? 0 : 1;
      found.engaged = std::max(found.engaged, engaged);
    }
  }
  return found;
}

// How many results differ in a child of fork, whose plain threads are 16 where the plan says 16, whatever the
// machine has. The parent has threads of its own by then.
int differences_in_child(DenseCase& c) {
  std::int64_t cut = 0;
  int engaged = 0;
  bits_on(c, "", 16, &cut, &engaged);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    _exit(std::min(compare_threads(c).of_bits, 100));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char* const kCutProblems[] = {
    "hq8 hk8 sq128 sk128 d128 fp32 lse",          "hq8 hk8 sq128 sk128 d128 bf16 causal=br lse",
    "hq4 hk1 sq97 sk301 d64 fp16 causal=br lse",  "b2 hq6 hk2 sq190 sk333 d40 dv56 fp32 causal=br lse",
    "hq1 hk1 sq600 sk300 d64 bf16 causal=tl lse", "hq8 hk8 sq1 sk5000 d64 bf16 lse",
    "hq4 hk4 sq3 sk3000 d64 fp32 splits=3 lse",   "hq2 hk2 sq300 sk300 d64 fp32 window=40,9 align=br lse"};

TEST(CpuPartition, NoBitDependsOnIt) {
  Differences all;
  for (const char* text : kCutProblems) {
    DenseCase c(problem_of(text));
    const Differences found = compare_threads(c);
    EXPECT_EQ(found.of_bits, 0) << text;
    all.of_cuts += found.of_cuts;
    all.engaged = std::max(all.engaged, found.engaged);
  }
  EXPECT_GT(all.of_cuts, 0) << "every plan cut the rows alike: nothing was compared";
  EXPECT_EQ(all.engaged, 16);
}

TEST(CpuPartition, NoBitDependsOnItInAChildOfFork) {
  for (const char* text : kCutProblems) {
    DenseCase c(problem_of(text));
    EXPECT_EQ(differences_in_child(c), 0) << text;
  }
}

// Values whose finite sum overflows, beside an Inf: what comes of them depends on the order in which they are
// added. Some tasks hold only rows that see all keys, and in others none do.
struct OverflowCase : DenseCase {
  static Problem of(DType dtype) {
    Problem p = problem_of("hq4 hk2 sq1100 sk64 d8 dv40 fp32 causal=tl lse");
    p.dtype = dtype;
    return p;
  }
  explicit OverflowCase(DType dtype) : DenseCase(of(dtype)) {
    const float largest = dtype == DType::kFloat16 ? 65504.0F : 3e38F;
    for (std::int64_t i = 0; i < 64 * 2 * 40; ++i) {
      const bool infinite = i % 40 % 2 == 0 && i / 80 % 9 == 4;
      core::store_element(v.data(), dtype, i, infinite ? -std::numeric_limits<float>::infinity() : largest);
    }
  }
};
constexpr DType kEachDtype[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

TEST(CpuPartition, NoBitOfOverflowDependsOnIt) {
  for (const DType dtype : kEachDtype) {
    OverflowCase c(dtype);
    const Differences found = compare_threads(c);
    EXPECT_EQ(found.of_bits, 0) << to_string(c.p);
    EXPECT_GT(found.of_cuts, 0);
  }
}

TEST(CpuPartition, NoBitOfOverflowDependsOnItInAChildOfFork) {
  for (const DType dtype : kEachDtype) {
    OverflowCase c(dtype);
    EXPECT_EQ(differences_in_child(c), 0) << to_string(c.p);
  }
}

// Sequences of seven lengths behind each other.
struct PackedCase : DenseCase {
  explicit PackedCase(const Problem& dense) : DenseCase(dense) {  // more memory than is used
    const std::vector<std::int32_t> lengths{31, 400, 0, 64, 1, 190, 77};
    ends.assign(lengths.size() + 1, 0);
    std::partial_sum(lengths.begin(), lengths.end(), ends.begin() + 1);
    p.varlen_q = p.varlen_kv = true;
    p.total_q = p.total_kv = ends.back();
    t.q = TensorView::bshd(q.data(), p.dtype, 1, ends.back(), 4, 64);
    t.k = TensorView::bshd(k.data(), p.dtype, 1, ends.back(), 2, 64);
    t.v = TensorView::bshd(v.data(), p.dtype, 1, ends.back(), 2, 64);
    t.o = TensorView::bshd(o.data(), p.dtype, 1, ends.back(), 4, 64);
    t.lse = TensorView::lse(lse.data(), 1, 4, ends.back());
    t.cu_seqlens_q = t.cu_seqlens_kv = ends.data();
  }
  std::vector<std::int32_t> ends;
};
const char* const kPackedProblems[] = {"b7 hq4 hk2 sq400 sk400 d64 fp32 causal=br lse",
                                       "b7 hq4 hk2 sq400 sk400 d64 bf16 causal=br lse"};

TEST(CpuPartition, NoBitOfPackedSequencesDependsOnIt) {
  for (const char* text : kPackedProblems) {
    PackedCase c(problem_of(text));
    const Differences found = compare_threads(c);
    EXPECT_EQ(found.of_bits, 0) << text;
    EXPECT_GT(found.engaged, 2) << text;
  }
}

TEST(CpuPartition, NoBitOfPackedSequencesDependsOnItInAChildOfFork) {
  for (const char* text : kPackedProblems) {
    PackedCase c(problem_of(text));
    EXPECT_EQ(differences_in_child(c), 0) << text;
  }
}

}  // namespace
}  // namespace attn::cpu
