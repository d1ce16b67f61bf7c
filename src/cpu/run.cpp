// A run: new keys first, then the tasks, then the splits' combination. Each worker has a share of the tasks,
// the longest first, and then takes from the others' shares; which worker does a task changes no bit of it.
// Tested in tests/unit/cpu_attention_test.cpp.
#include <algorithm>
#include <atomic>
#include <cfenv>

#include "cpu/append.hpp"
#include "cpu/cpu_backend.hpp"
#include "cpu/finish.hpp"
#include "cpu/tile.hpp"

namespace attn::cpu {
namespace {

// Numbers of tasks for blocks of rows: those of a sequence follow from its own rows. A task takes `heads`
// key/value heads together.
class Tasks {
 public:
  Tasks(const RunContext& context, std::int64_t heads)
      : context_(context),
        heads_(heads),
        head_groups_(context.problem.heads_kv / heads),
        splits_(context.plan.split_rule == SplitRule::kNone ? 1 : context.plan.num_splits) {
    const Problem& p = context.problem;
    if (!p.varlen_q) {
      blocks_ = blocks_of(p.seqlen_q);
      count_ = p.batch * head_groups_ * blocks_;
      return;
    }
    table_ = reinterpret_cast<std::int64_t*>(context.workspace + context.plan.table_offset);
    table_[0] = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t rows = context.tensors.cu_seqlens_q[b + 1] - context.tensors.cu_seqlens_q[b];
      table_[b + 1] = table_[b] + blocks_of(rows) * head_groups_;
    }
    count_ = table_[p.batch];
  }

  [[nodiscard]] std::int64_t row_blocks() const { return count_; }
  [[nodiscard]] std::int64_t with_splits() const { return count_ * splits_; }
  [[nodiscard]] std::int64_t splits() const { return splits_; }

  // Sequence, head and rows of block `index`. Later rows come first: under a causal mask they see more keys.
  void locate(std::int64_t index, Task* task) const {
    const Problem& p = context_.problem;
    std::int64_t b = 0;
    std::int64_t blocks = blocks_;
    std::int64_t from_last = 0;
    if (table_ == nullptr) {
      const std::int64_t groups = p.batch * head_groups_;
      from_last = index / groups;
      b = index % groups / head_groups_;
      task->kv_head = index % head_groups_ * heads_;
    } else {
      b = std::upper_bound(table_, table_ + p.batch + 1, index) - table_ - 1;
      blocks = (table_[b + 1] - table_[b]) / head_groups_;
      from_last = (index - table_[b]) / head_groups_;
      task->kv_head = (index - table_[b]) % head_groups_ * heads_;
    }
    task->sequence = core::sequence_of(p, context_.tensors, b);
    const std::int64_t rows = context_.plan.group * task->sequence.seqlen_q;
    task->row_begin = (blocks - 1 - from_last) * context_.plan.rows_per_task;
    task->row_end = std::min(task->row_begin + context_.plan.rows_per_task, rows);
  }

 private:
  [[nodiscard]] std::int64_t blocks_of(std::int64_t queries) const {
    const std::int64_t per_task = context_.plan.rows_per_task;
    return (context_.plan.group * queries + per_task - 1) / per_task;
  }

  const RunContext& context_;
  std::int64_t heads_;
  std::int64_t head_groups_;
  std::int64_t splits_;
  std::int64_t* table_ = nullptr;
  std::int64_t blocks_ = 0;
  std::int64_t count_ = 0;
};

// One phase: jobs 0 … count − 1, each handed to some worker with its own scratch. Worker w begins with jobs
// w, w + shares, …: the same ones in the next call, whose inputs, outputs and scratch may still lie in its
// CPU's caches.
struct Phase {
  struct alignas(64) Share {
    std::atomic<std::int64_t> taken{0};
  };
  static constexpr int kMostShares = 64;  // further workers begin with a share that is another's too

  const RunContext& context;
  const Tasks& tasks;
  void (*job)(const Phase& phase, std::int64_t index, char* scratch);
  std::int64_t count;
  int shares;
  Share share[kMostShares];

  // The next job of a share, or count and more: none is left.
  std::int64_t take(int s) {
    const auto job_of = [&](std::int64_t n) { return n * shares + s; };
    if (job_of(share[s].taken.load(std::memory_order_relaxed)) >= count) {
      return count;
    }
    return job_of(share[s].taken.fetch_add(1, std::memory_order_relaxed));
  }
};

// The environment of a new thread: rounding to nearest, subnormals kept, nothing trapped. Callers have others
// (-ffast-math flushes subnormals, feenableexcept traps the −inf of masks), and which worker does a task must
// not change a bit of it.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_{};
};

void work(void* opaque, int worker) {
  const DefaultFloatEnvironment environment;
  Phase& phase = *static_cast<Phase*>(opaque);
  const CpuPlan& plan = phase.context.plan;
  char* scratch =
      phase.context.workspace + plan.scratch_offset + static_cast<std::size_t>(worker) * plan.scratch.bytes;
  for (int turn = 0; turn < phase.shares; ++turn) {
    const int s = (worker + turn) % phase.shares;
    for (std::int64_t i = phase.take(s); i < phase.count; i = phase.take(s)) {
      phase.job(phase, i, scratch);
    }
  }
}

void run_phase(const RunContext& context, const Tasks& tasks, int threads, std::int64_t count,
               void (*job)(const Phase&, std::int64_t, char*)) {
  const auto workers = static_cast<int>(std::min<std::int64_t>(threads, count));
  Phase phase{context, tasks, job, count, std::clamp(workers, 1, Phase::kMostShares), {}};
  context.plan.team.run(workers, &work, &phase);
}

void append_job(const Phase& phase, std::int64_t index, char* scratch) {
  const RunContext& c = phase.context;
  append_head(c.problem, c.tensors, index / c.problem.heads_kv, index % c.problem.heads_kv,
              reinterpret_cast<float*>(scratch + c.plan.scratch.q_row));
}

void attention_job(const Phase& phase, std::int64_t index, char* scratch) {
  const RunContext& c = phase.context;
  Task task;
  phase.tasks.locate(index / phase.tasks.splits(), &task);
  const std::int64_t n = index % phase.tasks.splits();
  const Split split = split_of(c.plan, c.problem, task.sequence);
  if (n >= split.count) {
    return;
  }
  const std::int64_t tile = split.first_tile + n * split.tiles_per_split;
  task.key_begin = tile * c.plan.tile_keys;
  task.key_end =
      std::min(tile + split.tiles_per_split, split.first_tile + split.num_tiles) * c.plan.tile_keys;
  if (split.count > 1) {
    const std::int64_t floats = c.problem.head_dim_v + 2;
    task.partials = partials_of(c, task.sequence, task.kv_head, task.row_begin) + n * floats;
    task.partial_stride = c.plan.num_splits * floats;
    task.partial_head_stride = partials_of(c, task.sequence, 1, 0) - partials_of(c, task.sequence, 0, 0);
  }
  run_task(c, task, scratch);
}

void combine_job(const Phase& phase, std::int64_t index, char* scratch) {
  const RunContext& c = phase.context;
  Task task;
  phase.tasks.locate(index, &task);
  const Split split = split_of(c.plan, c.problem, task.sequence);
  if (split.count > 1) {
    combine_rows(c, task.sequence, task.kv_head, task.row_begin, task.row_end, split.count,
                 reinterpret_cast<float*>(scratch + c.plan.scratch.o),
                 reinterpret_cast<float*>(scratch + c.plan.scratch.o_low));
  }
}

}  // namespace

Status run(const PlanImpl& impl, const Tensors& tensors, void* workspace, void* /*stream*/) {
  const auto& plan = static_cast<const CpuPlan&>(*impl.backend_plan);
  const Problem& p = impl.problem;
  const RunContext context{plan, p, tensors, static_cast<char*>(workspace)};
  const Tasks tasks(context, plan.heads_together);
  if (p.seqlen_new > 0) {
    run_phase(context, tasks, plan.append_threads, p.batch * p.heads_kv, &append_job);
  }
  run_phase(context, tasks, plan.threads, tasks.with_splits(), &attention_job);
  if (tasks.splits() > 1) {
    const Tasks single(context, 1);
    run_phase(context, single, plan.combine_threads, single.row_blocks(), &combine_job);
  }
  return {};
}

}  // namespace attn::cpu
