// From the options of `attn run` to Problem and Tensors: see run_problem.hpp.
#include "run_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "command.hpp"

namespace attn::tool {
namespace {

io::ElementType element_type(const std::string& name) {
  return name == "fp32"   ? io::ElementType::kFloat32
         : name == "fp16" ? io::ElementType::kFloat16
                          : io::ElementType::kBFloat16;
}

Alignment alignment_of(const std::string& name) {
  return name == "br" ? Alignment::kBottomRight : name == "tl" ? Alignment::kTopLeft : Alignment::kUnset;
}

// The longest of the sequences between offsets; what is malformed is left to validate, which names it.
std::int64_t longest(const Integers& offsets) {
  std::int64_t most = 0;
  for (std::size_t i = 1; i < offsets.values.size(); ++i) {
    most = std::max(most, std::int64_t{offsets.values[i]} - offsets.values[i - 1]);
  }
  return most;
}

void want_count(const std::string& option, std::size_t count, std::int64_t wanted, const char* what) {
  if (static_cast<std::int64_t>(count) != wanted) {
    fail_usage(fmt::format("{}: {} numbers; {} wanted ({})", option, count, wanted, what));
  }
}

}  // namespace

RunProblem::RunProblem(const RunOptions& options) {
  const Inputs inputs(options.file, options.npy_bf16);
  bhsd_ = options.layout == "bhsd";
  read_main(options, inputs);
  set_lengths(options, inputs);
  set_append(options, inputs);
  set_meaning(options, inputs);
  check(validate(problem_));
  make_outputs();
  check(validate(problem_, tensors_, true));
}

io::Array RunProblem::converted(const std::string& option, io::Array array) const {
  if (!dtype_ || array.dtype == *dtype_) {
    return array;
  }
  io::Array result;
  check(io::convert(array, *dtype_, io::Rounding::kNearestEven, &result), option);
  return result;
}

void RunProblem::read_main(const RunOptions& options, const Inputs& inputs) {
  const auto source = [&](const std::string& given, const char* name) {
    if (!given.empty()) {
      return given;
    }
    if (options.file.empty()) {
      fail_usage(fmt::format("--{} is missing; give --q, --k and --v, or a .safetensors file", name));
    }
    return fmt::format("@{}{}", options.prefix, name);
  };
  q_ = inputs.array("--q", source(options.q, "q"));
  k_ = inputs.array("--k", source(options.k, "k"));
  v_ = inputs.array("--v", source(options.v, "v"));
  if (!options.dtype.empty()) {
    dtype_ = element_type(options.dtype);
    q_ = converted("--q", std::move(q_));
    k_ = converted("--k", std::move(k_));
    v_ = converted("--v", std::move(v_));
  }
  for (const auto& [option, array] : {std::pair("--k", &k_), std::pair("--v", &v_)}) {
    if (array->dtype != q_.dtype) {
      fail_usage(fmt::format("{}: dtype {} differs from {} of --q; give files of one dtype, or --dtype",
                             option, io::to_string(array->dtype), io::to_string(q_.dtype)));
    }
  }
  tensors_.q = view_of("--q", q_, bhsd_);
  tensors_.k = view_of("--k", k_, bhsd_);
  tensors_.v = view_of("--v", v_, bhsd_);
  dtype_ = q_.dtype;
  problem_.dtype = tensors_.q.dtype;
  problem_.heads_q = tensors_.q.shape[2];
  problem_.heads_kv = tensors_.k.shape[2];
  problem_.head_dim_qk = tensors_.q.shape[3];
  problem_.head_dim_v = tensors_.v.shape[3];
}

void RunProblem::set_lengths(const RunOptions& options, const Inputs& inputs) {
  Problem& p = problem_;
  p.batch = tensors_.q.shape[0];
  p.seqlen_q = tensors_.q.shape[1];
  p.seqlen_kv = tensors_.k.shape[1];
  if (!options.cu_seqlens_q.empty()) {
    cu_seqlens_q_ = inputs.integers("--cu-seqlens-q", options.cu_seqlens_q);
    if (cu_seqlens_q_.values.empty()) {
      fail_usage("--cu-seqlens-q: no numbers; batch + 1 are wanted");
    }
    p.varlen_q = true;
    p.total_q = p.seqlen_q;
    p.batch = static_cast<std::int64_t>(cu_seqlens_q_.values.size()) - 1;
    p.seqlen_q = longest(cu_seqlens_q_);
    tensors_.cu_seqlens_q = cu_seqlens_q_.values.data();
  }
  if (!options.cu_seqlens_kv.empty()) {
    cu_seqlens_kv_ = inputs.integers("--cu-seqlens-kv", options.cu_seqlens_kv);
    want_count("--cu-seqlens-kv", cu_seqlens_kv_.values.size(), p.batch + 1, "batch + 1");
    p.varlen_kv = true;
    p.total_kv = p.seqlen_kv;
    p.seqlen_kv = longest(cu_seqlens_kv_);
    tensors_.cu_seqlens_kv = cu_seqlens_kv_.values.data();
  }
  if (!options.page_table.empty()) {
    page_table_ = inputs.integers("--page-table", options.page_table);
    const auto entries = static_cast<std::int64_t>(page_table_.values.size());
    if (page_table_.rows != p.batch) {
      // A flat list is cut into the rows of the batch.
      if (page_table_.rows != 1 || p.batch == 0 || entries % p.batch != 0) {
        fail_usage(fmt::format("--page-table: {} rows; one of each of the {} sequences is wanted",
                               page_table_.rows, p.batch));
      }
      page_table_.columns = entries / p.batch;
    }
    p.page_size = tensors_.k.shape[1];
    p.num_pages = tensors_.k.shape[0];
    if (page_table_.columns > 0 &&
        p.page_size > std::numeric_limits<std::int64_t>::max() / page_table_.columns) {
      fail_usage("--page-table: pages × page_size does not fit 63 bits");
    }
    p.seqlen_kv = page_table_.columns * p.page_size;
    tensors_.page_table = page_table_.values.data();
    tensors_.page_table_stride = page_table_.columns;
  }
  if (!options.seqused_kv.empty()) {
    seqused_kv_ = inputs.integers("--seqused-kv", options.seqused_kv);
    want_count("--seqused-kv", seqused_kv_.values.size(), p.batch, "one a sequence");
    p.seqused_kv = true;
    tensors_.seqused_kv = seqused_kv_.values.data();
  }
}

void RunProblem::set_append(const RunOptions& options, const Inputs& inputs) {
  if (options.k_new.empty() != options.v_new.empty()) {
    fail_usage(fmt::format("--{}-new is missing; an append needs both --k-new and --v-new",
                           options.k_new.empty() ? "k" : "v"));
  }
  if (!options.k_new.empty()) {
    k_new_ = converted("--k-new", inputs.array("--k-new", options.k_new));
    v_new_ = converted("--v-new", inputs.array("--v-new", options.v_new));
    tensors_.k_new = view_of("--k-new", k_new_, bhsd_);
    tensors_.v_new = view_of("--v-new", v_new_, bhsd_);
    problem_.seqlen_new = tensors_.k_new.shape[1];
  }
  if (options.rotary_cos.empty() != options.rotary_sin.empty()) {
    fail_usage(fmt::format("--rotary-{} is missing; a rotation needs both --rotary-cos and --rotary-sin",
                           options.rotary_cos.empty() ? "cos" : "sin"));
  }
  if (!options.rotary_cos.empty()) {
    for (const auto& [option, path, array, view] :
         {std::tuple("--rotary-cos", &options.rotary_cos, &cos_, &tensors_.rotary_cos),
          std::tuple("--rotary-sin", &options.rotary_sin, &sin_, &tensors_.rotary_sin)}) {
      const io::Array read = inputs.array(option, *path);
      if (read.shape.size() != 2) {
        fail_usage(fmt::format("{}: shape {} is not allowed; give (positions, rotary_dim / 2)", option,
                               io::shape_string(read.shape)));
      }
      check(io::convert(read, io::ElementType::kFloat32, io::Rounding::kNearestEven, array), option);
      *view = view_of(option, *array, false);
    }
    problem_.rotary_dim = 2 * tensors_.rotary_cos.shape[3];
    problem_.rotary_style =
        options.rotary_style == "interleaved" ? RotaryStyle::kInterleaved : RotaryStyle::kHalfSplit;
  }
}

void RunProblem::set_meaning(const RunOptions& options, const Inputs& inputs) {
  Problem& p = problem_;
  p.causal = !options.causal.empty();
  p.alignment = alignment_of(p.causal ? options.causal : options.align);
  if (p.causal && !options.align.empty() && options.align != options.causal) {
    fail_usage(fmt::format("--align: '{}' contradicts --causal {}", options.align, options.causal));
  }
  if (!options.window.empty()) {
    const std::vector<std::string_view> parts = split(options.window, ',');
    const std::optional<std::int64_t> left = parse_integer(parts[0]);
    const std::optional<std::int64_t> right = parts.size() == 2 ? parse_integer(parts[1]) : std::nullopt;
    if (!left || !right || *left < -1 || *right < -1) {
      fail_usage(fmt::format("--window: '{}' is not LEFT,RIGHT, each -1 (unbounded) or a whole number from 0",
                             options.window));
    }
    p.window_left = *left;
    p.window_right = *right;
  }
  p.softcap = options.softcap.value_or(0.0F);
  p.softmax_scale = options.scale;
  p.lse_with_sink = !options.lse_without_sink;
  p.num_splits = options.splits;
  p.batch_invariant = options.batch_invariant;
  p.deterministic = !options.nondeterministic;
  p.want_lse = !options.lse.empty();
  if (!options.sinks.empty()) {
    sinks_ = inputs.numbers("--sinks", options.sinks);
    want_count("--sinks", sinks_.values.size(), p.heads_q, "one a query head");
    p.sinks = true;
    tensors_.sinks = sinks_.values.data();
  }
  if (!options.alibi.empty()) {
    alibi_ = inputs.numbers("--alibi", options.alibi);
    const bool per_sequence = alibi_.rows != 1;
    want_count("--alibi", alibi_.values.size(), per_sequence ? p.heads_q * p.batch : p.heads_q,
               per_sequence ? "one a query head in each row, one row a sequence" : "one a query head");
    p.alibi = true;
    tensors_.alibi_slopes = alibi_.values.data();
    tensors_.alibi_batch_stride = per_sequence ? p.heads_q : 0;
  }
}

io::Array RunProblem::take(std::string_view name) {
  io::Array array = std::move(name == "o" ? o_ : name == "lse" ? lse_ : name == "k" ? k_ : v_);
  array.name = name;
  return array;
}

void RunProblem::make_outputs() {
  const std::array<std::int64_t, 4> rows = tensors_.q.shape;
  std::vector<std::int64_t> shape = q_.shape;
  shape.back() = problem_.head_dim_v;
  check(io::make_array("o", q_.dtype, shape, &o_), "--out");
  std::fill(o_.bytes.begin(), o_.bytes.end(), std::byte{0});
  tensors_.o = view_of("--out", o_, bhsd_);
  if (problem_.want_lse) {
    std::vector<std::int64_t> lse_shape{rows[0], rows[2], rows[1]};
    if (q_.shape.size() < 4) {
      lse_shape.erase(lse_shape.begin());
    }
    check(io::make_array("lse", io::ElementType::kFloat32, lse_shape, &lse_), "--lse");
    auto* data = static_cast<float*>(lse_.data());
    std::fill(data, data + lse_.num_elements(), -std::numeric_limits<float>::infinity());
    tensors_.lse = TensorView::lse(data, rows[0], rows[2], rows[1]);
  }
}

}  // namespace attn::tool
