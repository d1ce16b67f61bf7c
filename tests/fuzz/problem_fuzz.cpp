// The problem string. Any text: parses or is refused with a message, and what parses prints and parses back
// to the same. Input beginning with a byte above 0x7F: any Problem that can be written, field by field,
// prints and parses.
#include <attn/plan.hpp>
#include <attn/problem.hpp>
#include <bit>
#include <cmath>

#include "fuzz.hpp"

namespace {

using attn::Problem;

void round_trip(const Problem& problem) {
  const std::string text = attn::to_string(problem);
  Problem back;
  const attn::Status status = attn::parse(text, &back);
  FUZZ_CHECK(status.ok(), text + ": " + status.message());
  FUZZ_CHECK(back == problem, text + " came back as " + attn::to_string(back));
  FUZZ_CHECK(attn::to_string(back) == text, text);
  const attn::Status valid = attn::validate(problem);
  FUZZ_CHECK(valid.ok() || !valid.message().empty(), text);
}

bool has_nan(const Problem& problem) {
  return std::isnan(problem.softcap) || (problem.softmax_scale && std::isnan(*problem.softmax_scale));
}

// Any bits, small numbers more often than large ones.
std::int64_t number(attn::fuzz::Reader& in) {
  const std::uint8_t kind = in.byte();
  if (kind < 128) {
    return kind;
  }
  return static_cast<std::int64_t>(in.bits64()) >> (kind % 64);
}

Problem decode(attn::fuzz::Reader& in) {
  Problem p;
  p.dtype = static_cast<attn::DType>(in.below(3));
  for (std::int64_t Problem::*const field :
       {&Problem::batch, &Problem::seqlen_q, &Problem::seqlen_kv, &Problem::heads_q, &Problem::heads_kv,
        &Problem::head_dim_qk, &Problem::head_dim_v, &Problem::window_left, &Problem::window_right,
        &Problem::page_size, &Problem::num_pages, &Problem::seqlen_new, &Problem::rotary_dim,
        &Problem::num_splits}) {
    if (in.flag()) {
      p.*field = number(in);
    }
  }
  for (bool Problem::*const field :
       {&Problem::causal, &Problem::sinks, &Problem::lse_with_sink, &Problem::alibi, &Problem::varlen_q,
        &Problem::varlen_kv, &Problem::seqused_kv, &Problem::want_lse, &Problem::batch_invariant,
        &Problem::deterministic}) {
    p.*field = in.flag();
  }
  // What a string cannot hold, because it is not a problem: causal of no alignment, totals of no packed
  // tensor.
  p.alignment = static_cast<attn::Alignment>(p.causal ? 1 + in.below(2) : in.below(3));
  p.total_q = p.varlen_q ? number(in) : 0;
  p.total_kv = p.varlen_kv ? number(in) : 0;
  p.rotary_style = in.flag() ? attn::RotaryStyle::kInterleaved : attn::RotaryStyle::kHalfSplit;
  p.softcap = std::bit_cast<float>(static_cast<std::uint32_t>(in.bits64()));
  if (in.flag()) {
    p.softmax_scale = std::bit_cast<float>(static_cast<std::uint32_t>(in.bits64()));
  }
  return p;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] > 0x7F) {
    attn::fuzz::Reader in(data + 1, size - 1);
    const Problem problem = decode(in);
    if (!has_nan(problem)) {  // NaN equals nothing
      round_trip(problem);
    }
    return 0;
  }
  Problem before;
  before.batch = 77;
  Problem problem = before;
  const attn::Status status = attn::parse({reinterpret_cast<const char*>(data), size}, &problem);
  if (!status.ok()) {
    FUZZ_CHECK(!status.message().empty(), "no message");
    FUZZ_CHECK(problem == before, "a refused string changed the problem");
  } else if (!has_nan(problem)) {
    round_trip(problem);
  }
  return 0;
}
