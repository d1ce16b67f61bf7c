// The features of the support table and the problem that stands for each: see support_table.hpp.
#include "support_table.hpp"

#include <algorithm>
#include <attn/problem.hpp>

#include "command.hpp"

namespace attn::tool {
namespace {

struct Feature {
  const char* name;
  // Each must be supported for the feature to be; the first stands for it in the table.
  std::vector<const char*> problems;
};

const std::vector<Feature>& features() {
  static const std::vector<Feature> kFeatures{
      {"fp32", {"b2 hq8 hk8 sq256 sk256 d64 fp32"}},
      {"fp16", {"b2 hq8 hk8 sq256 sk256 d64 fp16"}},
      {"bf16", {"b2 hq8 hk8 sq256 sk256 d64 bf16"}},
      {"head dims 1 to 512",
       {"b1 hq2 hk2 sq64 sk64 d512 bf16", "b1 hq2 hk2 sq64 sk64 d1 bf16", "b1 hq2 hk2 sq64 sk64 d7 fp32",
        "b1 hq2 hk2 sq64 sk64 d80 fp16", "b1 hq2 hk2 sq64 sk64 d511 fp32"}},
      {"head_dim_v apart from head_dim_qk",
       {"b1 hq8 hk8 sq64 sk64 d192 dv128 bf16", "b1 hq8 hk8 sq64 sk64 d64 dv512 fp16"}},
      {"grouped heads (GQA, MQA), any ratio",
       {"b1 hq12 hk4 sq64 sk64 d128 bf16", "b1 hq71 hk1 sq64 sk64 d64 bf16"}},
      {"causal, bottom-right and top-left",
       {"b1 hq8 hk8 sq64 sk256 d64 bf16 causal=br", "b1 hq8 hk8 sq64 sk256 d64 bf16 causal=tl"}},
      {"windows",
       {"b1 hq8 hk8 sq256 sk256 d64 bf16 align=br window=128,0",
        "b1 hq8 hk8 sq256 sk256 d64 bf16 causal=br window=128,-1"}},
      {"softcap", {"b1 hq8 hk8 sq256 sk256 d64 bf16 causal=br softcap=50"}},
      {"sinks", {"b1 hq8 hk8 sq256 sk256 d64 bf16 causal=br sinks"}},
      {"ALiBi slopes", {"b1 hq8 hk8 sq256 sk256 d64 bf16 causal=br alibi"}},
      {"any scale, negative and 0",
       {"b1 hq8 hk8 sq64 sk64 d64 bf16 scale=-0.125", "b1 hq8 hk8 sq64 sk64 d64 bf16 scale=0"}},
      {"LSE", {"b1 hq8 hk8 sq256 sk256 d64 bf16 lse"}},
      {"variable lengths (cu_seqlens)", {"b4 hq8 hk8 sq256 sk256 d64 bf16 varlen_q=700 varlen_kv=800"}},
      {"key lengths (seqused_kv)", {"b4 hq8 hk8 sq256 sk256 d64 bf16 seqused"}},
      {"paged K/V, any page size",
       {"b4 hq8 hk2 sq1 sk4096 d128 bf16 page=16 pages=1100 seqused",
        "b4 hq8 hk2 sq1 sk4098 d128 bf16 page=3 pages=5600 seqused"}},
      {"append to the cache", {"b4 hq8 hk2 sq1 sk4096 d128 bf16 causal=br new=1 seqused"}},
      {"append with rotary, both styles",
       {"b4 hq8 hk2 sq1 sk4096 d128 bf16 causal=br new=1 rotary=128,half seqused",
        "b4 hq8 hk2 sq1 sk4096 d128 bf16 causal=br new=1 rotary=64,interleaved seqused"}},
      {"splits along the keys", {"b1 hq8 hk2 sq1 sk8192 d128 bf16 splits=8"}},
      {"batch-invariant", {"b4 hq8 hk2 sq1 sk8192 d128 bf16 invariant"}},
  };
  return kFeatures;
}

BackendSupport answer(const Problem& problem, Backend backend) {
  PlanOptions options;
  options.backend = backend;
  for (const BackendSupport& s : support(problem, options)) {
    if (s.backend == backend) {
      return s;
    }
  }
  return {backend, false, "not part of this build"};
}

}  // namespace

std::vector<SupportRow> support_table() {
  std::vector<SupportRow> rows;
  for (const Feature& feature : features()) {
    SupportRow& row = rows.emplace_back();
    row.feature = feature.name;
    row.problem = feature.problems.front();
    for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
      BackendSupport all{backend, true, ""};
      for (const char* line : feature.problems) {
        Problem problem;
        check(parse(line, &problem));
        check(validate(problem));
        const BackendSupport one = answer(problem, backend);
        if (!one.supported) {
          all = one;
          break;
        }
      }
      row.backends.push_back(all);
    }
  }
  return rows;
}

}  // namespace attn::tool
