// Every SIMD level of this machine against the float64 reference (rule 13 of docs/contract.md, and rules 4 to
// 9 with it): the input's bytes choose a small problem with all its options, the layout, the data and what
// poison lies around; the judge of src/verify decides. Lengths and values come from the seed in the input's
// last bytes.
#include <span>
#include <vector>

#include "fuzz.hpp"
#include "verify/check.hpp"

namespace attn::fuzz {
namespace {

using verify::Case;

constexpr double kMaxScores = 3000;  // an input is a few milliseconds under the sanitizers

// A size near the edges that tiles and vectors have, up to `most`.
std::int64_t edge(Reader& in, std::int64_t most) {
  constexpr std::int64_t kEdges[] = {0,  1,  2,  3,  4,  7,  8,  9,   15,  16,  17,
                                     31, 32, 33, 63, 64, 65, 95, 127, 128, 129, 257};
  const std::int64_t size = in.flag() ? kEdges[in.below(std::size(kEdges))] : in.below(most + 1);
  return std::min(size, most);
}

std::int64_t bound(Reader& in) {
  const std::int64_t kind = in.below(4);
  return kind == 0 ? -1 : kind == 1 ? INT64_MAX - in.below(300) : in.below(70);
}

void decode_sizes(Reader& in, Problem* p) {
  p->dtype = static_cast<DType>(in.below(3));
  p->batch = 1 + in.below(3);
  p->heads_kv = 1 + in.below(3);
  p->heads_q = p->heads_kv * (1 + in.below(8));
  p->head_dim_qk = 1 + in.below(160);
  p->head_dim_v = in.flag() ? p->head_dim_qk : 1 + in.below(160);
  p->seqlen_q = edge(in, 129);
  p->seqlen_kv = edge(in, 300);
}

void decode_softmax(Reader& in, Problem* p) {
  constexpr float kScales[] = {0.0F, -0.25F, 1.0F, 1e-6F, 0.125F, -1.0F};
  p->causal = in.flag();
  if (in.flag()) {
    p->window_left = bound(in);
    p->window_right = bound(in);
  }
  p->softcap = in.flag() && in.flag() ? 0.5F * static_cast<float>(1 + in.byte()) : 0.0F;
  p->sinks = in.flag() && in.flag();
  p->lse_with_sink = !p->sinks || in.flag();
  p->alibi = in.flag() && in.flag();
  if (in.flag()) {
    p->softmax_scale = kScales[in.below(std::size(kScales))];
  }
  p->num_splits = in.flag() ? in.below(9) : 0;
  p->want_lse = in.flag();
  p->batch_invariant = in.flag();
}

void decode_lengths(Reader& in, Problem* p) {
  p->varlen_q = in.flag() && in.flag();
  switch (in.below(4)) {
    case 0:
      p->varlen_kv = true;
      break;
    case 1:
      p->page_size = 1 + in.below(70);
      break;
    default:
      break;
  }
  p->seqused_kv = in.flag();
  if (p->seqused_kv && !p->varlen_kv && p->seqlen_kv > 0 && in.flag()) {
    p->seqlen_new = 1 + in.below(p->seqlen_kv);
    if (in.flag()) {
      p->rotary_dim = 2 * in.below(p->head_dim_qk / 2 + 1);
      p->rotary_style = in.flag() ? RotaryStyle::kInterleaved : RotaryStyle::kHalfSplit;
    }
  }
}

Case decode(Reader& in) {
  Case c;
  Problem& p = c.problem;
  decode_sizes(in, &p);
  decode_softmax(in, &p);
  decode_lengths(in, &p);
  if (p.needs_alignment() || in.flag()) {
    p.alignment = in.flag() ? Alignment::kTopLeft : Alignment::kBottomRight;
  }
  // A query's rotary position must not be negative: never more queries than the lengthened sequence has keys.
  if (p.rotary_dim > 0 && p.alignment == Alignment::kBottomRight) {
    p.seqlen_q = std::min(p.seqlen_q, p.seqlen_new);
  }
  const auto pick = [&in](auto kinds) {
    return kinds[static_cast<std::size_t>(in.below(std::ssize(kinds)))];
  };
  c.data = in.flag() ? pick(verify::all_data()) : verify::Data::kNormal;
  c.layout = in.flag() ? pick(verify::all_layouts()) : verify::Layout::kBshd;
  c.offset = in.flag() ? in.below(10) : 0;
  c.shared_pages = p.page_size > 0 && in.flag() ? in.below(4) : 0;
  c.slopes = p.alibi && in.flag() ? verify::Slopes::kBatch : verify::Slopes::kPaper;
  c.poison = static_cast<verify::Poison>(in.below(4));
  c.seed = in.bits64();
  return c;
}

// Every level that runs here, and one of them with more threads than work.
const std::vector<PlanOptions>& plans() {
  static const std::vector<PlanOptions> all = [] {
    std::vector<PlanOptions> list;
    for (const CpuLevel& level : cpu_levels()) {
      if (level.runnable) {
        PlanOptions options;
        options.backend = Backend::kCpu;
        options.cpu_level = level.name;
        options.threads = list.empty() ? 3 : 1;
        list.push_back(options);
      }
    }
    return list;
  }();
  return all;
}

}  // namespace
}  // namespace attn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attn;
  fuzz::Reader in(data, size);
  verify::Case c = fuzz::decode(in);
  if (!verify::complete(&c).ok() || verify::total_scores(c) > fuzz::kMaxScores) {
    return 0;
  }
  FUZZ_CHECK(!fuzz::plans().empty(), "no SIMD level runs here");
  std::size_t judged = 0;
  verify::check_each(c, fuzz::plans(), {}, verify::host_runner(), [&](const verify::Report& report) {
    // Every size drawn here is within what the CPU backend can do: a refusal would be a hole in it.
    FUZZ_CHECK(report.passed, report.line + "\n" + report.kernel + ": " + report.failure);
    ++judged;
    return true;
  });
  FUZZ_CHECK(judged == fuzz::plans().size(), to_string(c));
  return 0;
}
