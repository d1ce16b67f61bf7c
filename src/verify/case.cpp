// Completing a case from its seed, and counting its work. Contract: case.hpp.
#include "verify/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "verify/random.hpp"

namespace attn::verify {
namespace {

// Streams of random.hpp: one per use, so that adding a use changes no other.
constexpr std::uint64_t kStreamLensQ = 101;
constexpr std::uint64_t kStreamLensKv = 102;

constexpr std::int64_t kSlackRows = 3;   // of packed tensors beyond cu_seqlens
constexpr std::int64_t kSparePages = 2;  // of the pool beyond those in use

Status refuse(std::string message) {
  return {StatusCode::kInvalidArgument, "case: " + std::move(message)};
}

// One length: the whole, nothing, one, or anything.
std::int64_t draw_length(Draws& draws, std::int64_t max) {
  switch (draws.between(0, 5)) {
    case 0:
      return max;
    case 1:
      return draws.one_in(2) ? 0 : std::min<std::int64_t>(1, max);
    default:
      return draws.between(0, max);
  }
}

Status complete_lengths(const char* name, std::uint64_t seed, std::int64_t batch, std::int64_t max,
                        std::vector<std::int64_t>* lens) {
  if (lens->empty() && batch > 0 && max >= 0) {
    Draws draws(seed, name[5] == 'q' ? kStreamLensQ : kStreamLensKv);
    for (std::int64_t b = 0; b < batch; ++b) {
      lens->push_back(draw_length(draws, max));
    }
  }
  if (static_cast<std::int64_t>(lens->size()) != std::max<std::int64_t>(batch, 0)) {
    return refuse(fmt::format("{} has {} lengths; allowed: one for each of the {} sequences", name,
                              lens->size(), batch));
  }
  for (const std::int64_t n : *lens) {
    if (n < 0 || n > max) {
      return refuse(fmt::format("{} holds {}; allowed: 0 to {}", name, n, max));
    }
  }
  return {};
}

void complete_total(std::int64_t sum, std::int64_t* total) {
  if (*total == 0 && sum > 0) {
    *total = sum + kSlackRows;
  }
}

Status check_layout(const Case& c) {
  const Problem& p = c.problem;
  const bool broadcast = c.layout == Layout::kBroadcastBatch || c.layout == Layout::kBroadcastHeads ||
                         c.layout == Layout::kBroadcastKeys;
  if (p.seqlen_new > 0 && (broadcast || c.layout == Layout::kNegative)) {
    return refuse(fmt::format("layout={} with an append; allowed: layouts in which caches can be written",
                              to_string(c.layout)));
  }
  const bool per_sequence = c.layout == Layout::kBroadcastBatch || c.layout == Layout::kBroadcastKeys;
  if (per_sequence && (p.page_size > 0 || p.varlen_kv)) {
    return refuse(fmt::format("layout={} with paged or packed K/V; allowed: dense K/V", to_string(c.layout)));
  }
  if (c.offset < 0 || c.offset > 4096) {
    return refuse(fmt::format("offset={}; allowed: 0 to 4096 elements", c.offset));
  }
  if (c.shared_pages < 0 || (c.shared_pages > 0 && p.page_size <= 0)) {
    return refuse(fmt::format("shared={}; allowed: 0, or a number of pages with paged K/V", c.shared_pages));
  }
  if (c.slopes != Slopes::kPaper && !p.alibi) {
    return refuse(fmt::format("slopes={} without alibi; allowed: with alibi", to_string(c.slopes)));
  }
  if (c.sinks != Sinks::kNormal && !p.sinks) {
    return refuse(fmt::format("sink_values={} without sinks; allowed: with sinks", to_string(c.sinks)));
  }
  return {};
}

}  // namespace

Status complete(Case* c) {
  Problem& p = c->problem;
  if (Status status = check_layout(*c); !status.ok()) {
    return status;
  }
  if (Status status = validate(p); !status.ok()) {
    return status;
  }
  if (p.varlen_q) {
    if (Status s = complete_lengths("lens_q", c->seed, p.batch, p.seqlen_q, &c->lens_q); !s.ok()) {
      return s;
    }
    complete_total(std::accumulate(c->lens_q.begin(), c->lens_q.end(), std::int64_t{0}), &p.total_q);
  } else if (!c->lens_q.empty()) {
    return refuse("lens_q without varlen_q; allowed: with packed queries");
  }
  if (p.varlen_kv || p.seqused_kv) {
    const std::int64_t room = p.seqlen_kv - p.seqlen_new;
    if (Status s = complete_lengths("lens_kv", c->seed, p.batch, room, &c->lens_kv); !s.ok()) {
      return s;
    }
  } else if (!c->lens_kv.empty()) {
    return refuse("lens_kv without varlen_kv or seqused; allowed: with one of them");
  }
  if (p.varlen_kv) {
    complete_total(std::accumulate(c->lens_kv.begin(), c->lens_kv.end(), std::int64_t{0}) +
                       (p.seqused_kv ? p.batch * kSlackRows : 0),
                   &p.total_kv);
  }
  if (p.page_size > 0 && p.num_pages == 0) {
    std::int64_t pages = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t length = p.seqused_kv ? c->lens_kv[b] + p.seqlen_new : p.seqlen_kv;
      pages += (length + p.page_size - 1) / p.page_size;
    }
    p.num_pages = pages + kSparePages;
  }
  return {};
}

namespace {

// Σ over queries of the keys each sees, from the words of rules 2 and 3.
double scores_of_sequence(const Problem& p, std::int64_t sq, std::int64_t sk) {
  const std::int64_t off = p.alignment == Alignment::kBottomRight ? sk - sq : 0;
  const std::int64_t far = std::max(sq, sk) + 1;  // an unbounded side reaches past every key
  const std::int64_t left = p.window_left < 0 ? 2 * far : std::min(p.window_left, 2 * far);
  std::int64_t right = p.window_right < 0 ? 2 * far : std::min(p.window_right, 2 * far);
  right = p.causal ? std::min<std::int64_t>(right, 0) : right;
  if (!p.causal && p.window_left < 0 && p.window_right < 0) {
    return static_cast<double>(sq) * static_cast<double>(sk);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < sq; ++i) {
    const std::int64_t first = std::max<std::int64_t>(0, i + off - left);
    const std::int64_t last = std::min(sk - 1, i + off + right);
    sum += static_cast<double>(std::max<std::int64_t>(0, last - first + 1));
  }
  return sum;
}

template <typename F>
double sum_over_sequences(const Case& c, F f) {
  const Problem& p = c.problem;
  double sum = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t sq = p.varlen_q ? c.lens_q[b] : p.seqlen_q;
    const std::int64_t sk = p.varlen_kv || p.seqused_kv ? c.lens_kv[b] + p.seqlen_new : p.seqlen_kv;
    sum += f(p, sq, sk);
  }
  return sum * static_cast<double>(p.heads_q);
}

}  // namespace

double visible_scores(const Case& c) {
  return sum_over_sequences(c, scores_of_sequence);
}

double total_scores(const Case& c) {
  return sum_over_sequences(c, [](const Problem&, std::int64_t sq, std::int64_t sk) {
    return static_cast<double>(sq) * static_cast<double>(sk);
  });
}

double flops(const Case& c) {
  return 2.0 * visible_scores(c) * static_cast<double>(c.problem.head_dim_qk + c.problem.head_dim_v);
}

}  // namespace attn::verify
