// See partition.hpp.
#include "cpu/partition.hpp"

#include <algorithm>
#include <cmath>

#include "core/geometry.hpp"

namespace attn::cpu {
namespace {

// Rows of a task where there are many. They share each packed tile of K and V: packing takes about as long as
// the products of 12 rows at d 128 (measured on Sapphire Rapids: 7.5 µs a tile of 256 keys against 0.7 µs a
// row) and several times that where a head's rows lie pages apart: 5 to 20 % of a task of 224 rows. More
// would not pay: a task's Q, O and what O's rounding lost, and a tile of K and V, should stay in a
// second-level cache of 2 MiB. (Where it is smaller, O comes from the third level: 1.3 bytes a cycle at d
// 128.)
constexpr std::int64_t kTaskRows = 2048;
constexpr std::int64_t kTaskBytes = 1792 * 1024;
constexpr std::int64_t kMinTaskRows = 28;
// Tasks a thread finds at most, so that the last ones to finish are short.
constexpr std::int64_t kTasksPerThread = 8;
// By how much sooner a finer cut must end, as it packs K and V again: estimates are no better than that.
constexpr double kFinerPays = 0.96;
// Tasks a thread from which on threads that come late or whose tasks are long leave theirs to others.
constexpr std::int64_t kManyTurns = 4;

// What the parts of a call take. Sapphire Rapids, thread CPU time of 8 heads of 14 to 512 rows against 32 to
// 512 keys, d 64 and 128, lines through the medians; whole calls take 0.8 to 1.3 of the estimates there. Only
// threads and tasks follow from these, and their choice is flat: twice the time asks for 1.4 times the
// threads.
constexpr double kTaskUs = 1;
constexpr double kRowUs = 0.02;
constexpr double kReadGbs = 25;  // of one thread, direct path, from the third-level cache
struct Rates {
  double gflops = 0;    // of the products, with the softmax between them
  double pack_ns = 0;   // of an element of K and V
  double query_ns = 0;  // of an element of Q and O, packed and stored
};
constexpr Rates kTileRates[] = {{.gflops = 140, .pack_ns = 0.23, .query_ns = 0.36},  // 16 lanes
                                {.gflops = 750, .pack_ns = 0.12, .query_ns = 0.25},  // AMX, by tile_parts
                                {.gflops = 480, .pack_ns = 0.25, .query_ns = 0.4},
                                {.gflops = 310, .pack_ns = 0.35, .query_ns = 0.5}};
constexpr Rates kDirectRates{.gflops = 80, .pack_ns = 0, .query_ns = 0.36};  // 16 lanes

// By how much helpers put off the end of a call that engages them. The first: it is told (0.4 µs awake;
// asleep, 25 to 50 µs, and 5 µs of its waker), and its part comes from memory that another CPU has written.
// Each further one begins 0.12 µs after the one before (16 CPUs, clock stamps of calls one after another),
// and is as much later in saying that it is done.
constexpr double kHelpUs = 2.7;
constexpr double kHelperUs = 0.3;

double help_us(int threads) {  // two at least
  return kHelpUs + kHelperUs * (threads - 1);
}

// What is lost at the end, in tasks: threads begin at any time of each other's tasks, and on shared machines
// they are not of one speed: of 16 CPUs that computed alike tasks at the same time some took 2.5 times as
// long as others. So whole calls ended soonest on 16 threads with estimates of one task (half a task: up to
// 30 % later under a causal mask), on two with half of one.
double late_tasks(int threads) {
  return 1.0 - 1.0 / threads;
}

std::int64_t rows_of_task(const Work& work, std::int64_t blocks) {
  const std::int64_t least = round_up(kMinTaskRows, work.granule);
  return std::min(std::max(round_up(ceil_div(work.rows, blocks), work.granule), least),
                  round_up(work.rows, 2));
}

std::int64_t tasks_of(const Work& work, std::int64_t rows_per_task) {
  if (work.alike()) {
    return work.sequences * ceil_div(work.rows, rows_per_task);
  }
  // Of lengths that are spread evenly a last block is half full.
  const double blocks = std::max(1.0, work.mean_rows / static_cast<double>(rows_per_task) + 0.5);
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(work.sequences) * blocks));
}

// Microseconds of one thread.
double total_of(const Work& work, std::int64_t tasks) {
  return static_cast<double>(tasks) * work.task_us +
         static_cast<double>(work.sequences) * work.mean_rows * work.row_us;
}

// Microseconds until tasks of two lengths are done that threads take from a queue, the longer ones first.
double queue_end(std::int64_t num_long, double long_us, std::int64_t num_short, double short_us,
                 int threads) {
  if (num_short == 0) {
    return static_cast<double>(ceil_div(num_long, threads)) * long_us;
  }
  const std::int64_t last = num_long % threads;  // of the longer ones, in a turn that is not full
  const std::int64_t beside =
      last == 0 ? 0 : (threads - last) * static_cast<std::int64_t>(long_us / short_us);
  const std::int64_t left = std::max<std::int64_t>(num_short - beside, 0);
  return static_cast<double>(ceil_div(num_long, threads)) * long_us +
         static_cast<double>(ceil_div(left, threads)) * short_us;
}

// Of the task that takes longest.
double longest_of(const Work& work, std::int64_t rows_per_task) {
  const std::int64_t rows = std::min(rows_per_task, work.rows);
  // Under a causal mask rows grow longer one by one; the last block's are the longest. Of sequences of
  // different lengths, all rows of the longest.
  const double shorter = (work.longest_row_us - work.row_us) / static_cast<double>(ceil_div(work.rows, rows));
  return work.task_us + static_cast<double>(rows) * (work.longest_row_us - (work.alike() ? shorter : 0));
}

// Microseconds until the last of `tasks` tasks is done.
double end_of(const Work& work, std::int64_t rows_per_task, std::int64_t tasks, int threads) {
  const double total = total_of(work, tasks);
  if (threads <= 1) {
    return total;
  }
  const double mean = total / static_cast<double>(tasks);
  const double longest = longest_of(work, rows_per_task);
  double end = std::max(total / threads, longest);
  if (work.alike() && tasks < kManyTurns * threads) {
    const std::int64_t rows = std::min(rows_per_task, work.rows);
    const std::int64_t rest = work.rows % rows;
    const auto us_of = [&](std::int64_t n) { return work.task_us + static_cast<double>(n) * work.row_us; };
    end = std::max(end, queue_end(work.sequences * (work.rows / rows), us_of(rows),
                                  rest > 0 ? work.sequences : 0, us_of(rest), threads));
  }
  return end + late_tasks(threads) * mean + help_us(threads);
}

// The best number of threads for tasks of so many rows, and when they end.
int best_threads(const Work& work, std::int64_t rows_per_task, int most, double* end) {
  const std::int64_t tasks = tasks_of(work, rows_per_task);
  int best = 1;
  *end = end_of(work, rows_per_task, tasks, 1);
  const auto consider = [&](std::int64_t threads) {
    const auto n =
        static_cast<int>(std::clamp<std::int64_t>(threads, 1, std::min<std::int64_t>(most, tasks)));
    if (const double us = end_of(work, rows_per_task, tasks, n); us < *end) {
      *end = us;
      best = n;
    }
  };
  const std::int64_t turns = ceil_div(tasks, most);
  consider(most);
  consider(ceil_div(tasks, turns));
  // Where threads have no turns to fill, the last helper takes off as much as it puts the end off, unless the
  // longest task is not done before.
  const double total = total_of(work, tasks);
  const double longest = longest_of(work, rows_per_task);
  consider(std::llround(std::min(std::sqrt(total / kHelperUs), static_cast<double>(most))));
  if (longest > 0) {
    const auto busy = static_cast<std::int64_t>(std::min(total / longest, static_cast<double>(most)));
    consider(busy);
    consider(busy + 1);
  }
  // The sum of turns · mean and kHelperUs · tasks / turns is least at their geometric middle.
  const double mean = total / static_cast<double>(tasks);
  const auto middle = static_cast<std::int64_t>(std::sqrt(kHelperUs * static_cast<double>(tasks) / mean));
  for (std::int64_t n = std::max(turns, middle); n <= std::max(turns, middle) + 1; ++n) {
    consider(ceil_div(tasks, n));
  }
  return best;
}

}  // namespace

Work work_of(const Problem& p, const CpuPlan& plan) {
  const KernelTable& tiles = *plan.tile_kernels;
  Work work;
  constexpr std::int64_t kMany = std::int64_t{1}
                                 << 30;  // more change nothing, and products must not overflow
  work.sequences = std::clamp<std::int64_t>(p.batch * p.heads_kv * plan.num_splits, 1, kMany);
  work.rows = std::clamp<std::int64_t>(plan.group * p.seqlen_q, 1, kMany);
  const bool direct = !p.varlen_q && work.rows <= kDirectRows;
  work.block_rows = tiles.block_rows;
  work.granule = tiles.block_granule;
  const auto bytes_of = [&](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  const std::int64_t row_bytes =
      bytes_of(plan.q_row_bytes) + plan.o_stride * bytes_of(sizeof(float)) * (tiles.keeps_low ? 2 : 1);
  const std::int64_t tile_bytes = plan.tile_keys * bytes_of(plan.k_row_bytes + plan.v_row_bytes);
  const std::int64_t most = std::min(kTaskRows, (kTaskBytes - tile_bytes) / row_bytes);
  work.task_rows = ceil_div(work.rows, ceil_div(work.rows, most));  // of about the same size

  // Keys that rows see. Of variable lengths only the sums and the longest are known: the mean number of rows,
  // and keys half way from their mean to the longest.
  work.mean_rows = static_cast<double>(work.rows);
  double keys = static_cast<double>(p.seqlen_kv);
  double longest = keys;
  if (p.varlen_q || p.varlen_kv) {
    const double sequences = static_cast<double>(std::max<std::int64_t>(p.batch, 1));
    if (p.varlen_q) {
      work.mean_rows = std::min(work.mean_rows, static_cast<double>(plan.group * p.total_q) / sequences);
    }
    keys = p.varlen_kv ? std::min(keys, (keys + static_cast<double>(p.total_kv) / sequences) / 2) : keys;
    keys = p.causal ? keys / 2 : keys;
  } else if (p.seqlen_q > 0) {
    core::Sequence s;
    s.seqlen_q = p.seqlen_q;
    s.seqlen_kv = p.seqlen_kv;
    s.off = p.alignment == Alignment::kBottomRight ? p.seqlen_kv - p.seqlen_q : 0;
    const auto seen = [&](std::int64_t i) {
      const core::KeyRange range = core::visible_keys(p, s, i);
      return static_cast<double>(std::max<std::int64_t>(range.end - range.begin, 0));
    };
    const double first = seen(0);
    const double middle = seen((p.seqlen_q - 1) / 2);
    const double last = seen(p.seqlen_q - 1);
    keys = (first + 2 * middle + last) / 4;
    longest = std::max({first, middle, last});
  }
  const double splits = static_cast<double>(plan.num_splits);
  const double dims = static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const double of_level = tiles.tile_parts > 0 && !direct ? 1 : 16.0 / plan.kernels->lanes;
  const Rates& rates = direct ? kDirectRates : kTileRates[tiles.tile_parts];
  const double row_us = kRowUs + rates.query_ns * dims * 1e-3;
  const double key_us = 2 * dims / rates.gflops * 1e-3 / splits;
  work.row_us = of_level * (row_us + keys * key_us);
  work.longest_row_us = of_level * (row_us + longest * key_us);
  work.task_us =
      kTaskUs + (direct ? keys / splits * dims * static_cast<double>(size_of(p.dtype)) / kReadGbs * 1e-3
                        : of_level * rates.pack_ns * std::min(longest, 2 * keys) / splits * dims * 1e-3);
  return work;
}

Partition partition(const Work& work, int threads) {
  Partition result;
  const std::int64_t blocks = ceil_div(work.rows, work.task_rows);
  // The rows that the caches like, in whole blocks.
  const std::int64_t whole =
      std::max(round_up(work.task_rows, work.block_rows), round_up(kMinTaskRows, work.block_rows));
  result.rows_per_task = std::min(whole, round_up(work.rows, 2));
  result.us = total_of(work, tasks_of(work, result.rows_per_task));
  double best = 0;
  result.threads = best_threads(work, result.rows_per_task, threads, &best);
  // Fewer where threads would go without work, as far as that ends sooner.
  const std::int64_t most = ceil_div(kTasksPerThread * threads, work.alike() ? work.sequences : 1);
  for (std::int64_t n = blocks + 1; threads > 1 && n <= most; n += std::max<std::int64_t>(n / 8, 1)) {
    const std::int64_t rows = rows_of_task(work, n);
    double end = 0;
    const int wanted = best_threads(work, rows, threads, &end);
    if (end < kFinerPays * best) {
      best = end;
      result.rows_per_task = rows;
      result.threads = wanted;
    }
    if (rows <= kMinTaskRows) {
      break;
    }
  }
  return result;
}

int threads_worth(std::int64_t tasks, double task_us, int threads) {
  if (tasks < 2 || threads < 2 || !(task_us > 0)) {
    return 1;
  }
  Work work;
  work.sequences = tasks;
  work.task_us = task_us;
  double end = 0;
  return best_threads(work, 1, threads, &end);
}

}  // namespace attn::cpu
