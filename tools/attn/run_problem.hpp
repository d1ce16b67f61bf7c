// The options of `attn run` and what they become: a Problem and its Tensors, over arrays that this object
// owns. Tested in tests/cli.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "measure.hpp"
#include "run_inputs.hpp"

namespace attn::tool {

struct RunOptions {
  // Inputs.
  std::string file;  // .safetensors
  std::string q;
  std::string k;
  std::string v;
  std::string prefix;  // of the default tensor names q, k, v
  std::string layout = "bshd";
  std::string dtype;  // empty: that of the files
  bool npy_bf16 = false;
  // What is computed.
  std::string causal;
  std::string align;
  std::string window;
  std::optional<float> softcap;
  std::optional<float> scale;
  std::string sinks;
  bool lse_without_sink = false;
  std::string alibi;
  // Where sequences lie.
  std::string cu_seqlens_q;
  std::string cu_seqlens_kv;
  std::string seqused_kv;
  std::string page_table;
  // Append.
  std::string k_new;
  std::string v_new;
  std::string rotary_cos;
  std::string rotary_sin;
  std::string rotary_style;  // empty: half
  // How.
  std::int64_t splits = 0;
  bool batch_invariant = false;
  bool nondeterministic = false;
  PlanFlags plan;
  // Outputs.
  std::string out;
  std::string lse;
  std::string k_out;
  std::string v_out;
  std::string out_dtype;
  bool verify = false;
  bool json = false;
};

class RunProblem {
 public:
  // Reads everything and allocates the outputs: O zero and LSE −inf where no sequence has a row. Throws
  // Failure.
  explicit RunProblem(const RunOptions& options);
  RunProblem(const RunProblem&) = delete;
  RunProblem& operator=(const RunProblem&) = delete;

  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] const Tensors& tensors() const noexcept { return tensors_; }
  // After a run, moved out: "o", "lse", "k" or "v". O has the rank and layout of Q; LSE is (batch, heads_q,
  // seqlen_q) or, where Q has no batch axis, (heads_q, seqlen_q).
  [[nodiscard]] io::Array take(std::string_view name);

 private:
  void read_main(const RunOptions& options, const Inputs& inputs);
  void set_lengths(const RunOptions& options, const Inputs& inputs);
  void set_append(const RunOptions& options, const Inputs& inputs);
  void set_meaning(const RunOptions& options, const Inputs& inputs);
  void make_outputs();
  [[nodiscard]] io::Array converted(const std::string& option, io::Array array) const;

  Problem problem_;
  Tensors tensors_;
  bool bhsd_ = false;
  std::optional<io::ElementType> dtype_;
  io::Array q_, k_, v_, o_, lse_;
  io::Array k_new_, v_new_, cos_, sin_;
  Integers cu_seqlens_q_, cu_seqlens_kv_, seqused_kv_, page_table_;
  Numbers sinks_, alibi_;
};

}  // namespace attn::tool
