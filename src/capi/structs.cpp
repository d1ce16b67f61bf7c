// Reading and writing the structs of attn.h. Tested in tests/capi/struct_size_test.c and arguments_test.c.
#include "capi/structs.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/refusal.hpp"

namespace attn::capi {
namespace {

// Far above what a struct can grow to, far below what an uninitialised size_t usually holds: the unknown tail
// is read, so a garbage size must not lead beyond the caller's memory by much.
constexpr std::size_t kMaxStructSize = 4096;

// Sizes of the first public header; what is smaller cannot be a client's struct. A problem may end earlier,
// where all that is left has defaults.
constexpr std::size_t kMinProblem = offsetof(attn_problem_t, has_softmax_scale);
constexpr std::size_t kMinView = 88;
constexpr std::size_t kMinOptions = 32;
constexpr std::size_t kMinTensors = 144;
constexpr std::size_t kMinForward = 96;
static_assert(sizeof(void*) == 8, "the sizes above are those of 64-bit ABIs");
static_assert(sizeof(attn_problem_t) >= 200 && kMinProblem == 72);
static_assert(sizeof(attn_tensor_view_t) >= kMinView && sizeof(attn_plan_options_t) >= kMinOptions);
static_assert(sizeof(attn_tensors_t) >= kMinTensors && sizeof(attn_forward_options_t) >= kMinForward);

template <class T>
struct Traits;
template <>
struct Traits<attn_problem_t> {
  static constexpr attn_problem_t kDefault = ATTN_PROBLEM_INIT;
  static constexpr std::size_t kMin = kMinProblem;
  static constexpr const char* kInit = "ATTN_PROBLEM_INIT";
};
template <>
struct Traits<attn_plan_options_t> {
  static constexpr attn_plan_options_t kDefault = ATTN_PLAN_OPTIONS_INIT;
  static constexpr std::size_t kMin = kMinOptions;
  static constexpr const char* kInit = "ATTN_PLAN_OPTIONS_INIT";
};
template <>
struct Traits<attn_tensors_t> {
  static constexpr attn_tensors_t kDefault = ATTN_TENSORS_INIT;
  static constexpr std::size_t kMin = kMinTensors;
  static constexpr const char* kInit = "ATTN_TENSORS_INIT";
};
template <>
struct Traits<attn_forward_options_t> {
  static constexpr attn_forward_options_t kDefault = ATTN_FORWARD_OPTIONS_INIT;
  static constexpr std::size_t kMin = kMinForward;
  static constexpr const char* kInit = "ATTN_FORWARD_OPTIONS_INIT";
};
template <>
struct Traits<attn_tensor_view_t> {
  static constexpr attn_tensor_view_t kDefault = ATTN_TENSOR_VIEW_INIT;
  static constexpr std::size_t kMin = kMinView;
  static constexpr const char* kInit = "ATTN_TENSOR_VIEW_INIT";
};

template <class T>
Status check_size(const char* name, const T* source) {
  if (reinterpret_cast<std::uintptr_t>(source) % alignof(T) != 0) {
    return core::invalid(std::string(name) + " address", "no multiple of 8", "a struct where C would put it");
  }
  const std::size_t size = source->struct_size;
  if (size < Traits<T>::kMin || size > kMaxStructSize || size % 8 != 0) {
    return core::invalid(
        std::string(name) + ".struct_size", std::to_string(size),
        std::string("what ") + Traits<T>::kInit + " sets; was the struct initialised with it?");
  }
  return {};
}

// Copies what both sides know over the defaults. The analyzer takes a refusal, which leaves *copy unset, for
// ok in the callers: NOLINT there.
template <class T>
Status take(const char* name, const T* source, T* copy) {
  ATTN_RETURN_IF_ERROR(check_size(name, source));
  const auto* bytes = reinterpret_cast<const unsigned char*>(source);
  for (std::size_t i = sizeof(T); i < source->struct_size; ++i) {
    if (bytes[i] != 0) {
      return core::invalid(std::string(name) + ", byte " + std::to_string(i),
                           static_cast<std::int64_t>(bytes[i]),
                           "0: the program was built against a newer attn.h and asks for something that this "
                           "library, version " +
                               std::string(version()) + ", does not know");
    }
  }
  *copy = Traits<T>::kDefault;
  std::memcpy(copy, source, std::min(sizeof(T), source->struct_size));
  return {};
}

Status flag(const char* name, std::int32_t value, bool* out) {
  if (value != 0 && value != 1) {
    return core::invalid(name, value, "0 or 1");
  }
  *out = value != 0;
  return {};
}

Status zero(const char* name, std::int64_t value) {
  return value == 0 ? Status{} : core::invalid(name, value, "0");
}

Status read_scale(std::int32_t has_scale, float scale, std::optional<float>* out) {
  bool has = false;
  ATTN_RETURN_IF_ERROR(flag("has_softmax_scale", has_scale, &has));
  // A scale that is given and not announced is a mistake that would otherwise go unseen.
  if (!has && !(scale == 0.0F)) {
    return core::invalid("softmax_scale", std::to_string(scale), "0 unless has_softmax_scale is 1");
  }
  *out = has ? std::optional<float>(scale) : std::nullopt;
  return {};
}

}  // namespace

Status read(const attn_problem_t* source, Problem* problem) {
  if (source == nullptr) {
    return core::invalid("problem", "null", "the address of an attn_problem_t");
  }
  attn_problem_t c;
  ATTN_RETURN_IF_ERROR(take("problem", source, &c));
  Problem p;
  p.dtype = static_cast<DType>(c.dtype);  // NOLINT(clang-analyzer-core.uninitialized.Assign): see take
  p.alignment = static_cast<Alignment>(c.alignment);
  p.batch = c.batch;
  p.seqlen_q = c.seqlen_q;
  p.seqlen_kv = c.seqlen_kv;
  p.heads_q = c.heads_q;
  p.heads_kv = c.heads_kv;
  p.head_dim_qk = c.head_dim_qk;
  p.head_dim_v = c.head_dim_v;
  ATTN_RETURN_IF_ERROR(read_scale(c.has_softmax_scale, c.softmax_scale, &p.softmax_scale));
  ATTN_RETURN_IF_ERROR(flag("causal", c.causal, &p.causal));
  p.softcap = c.softcap;
  p.window_left = c.window_left;
  p.window_right = c.window_right;
  ATTN_RETURN_IF_ERROR(flag("sinks", c.sinks, &p.sinks));
  ATTN_RETURN_IF_ERROR(flag("lse_with_sink", c.lse_with_sink, &p.lse_with_sink));
  ATTN_RETURN_IF_ERROR(flag("alibi", c.alibi, &p.alibi));
  ATTN_RETURN_IF_ERROR(flag("varlen_q", c.varlen_q, &p.varlen_q));
  ATTN_RETURN_IF_ERROR(flag("varlen_kv", c.varlen_kv, &p.varlen_kv));
  ATTN_RETURN_IF_ERROR(flag("seqused_kv", c.seqused_kv, &p.seqused_kv));
  p.total_q = c.total_q;
  p.total_kv = c.total_kv;
  p.page_size = c.page_size;
  p.num_pages = c.num_pages;
  p.seqlen_new = c.seqlen_new;
  p.rotary_dim = c.rotary_dim;
  p.rotary_style = static_cast<RotaryStyle>(c.rotary_style);
  ATTN_RETURN_IF_ERROR(flag("want_lse", c.want_lse, &p.want_lse));
  ATTN_RETURN_IF_ERROR(flag("batch_invariant", c.batch_invariant, &p.batch_invariant));
  ATTN_RETURN_IF_ERROR(flag("deterministic", c.deterministic, &p.deterministic));
  p.num_splits = c.num_splits;
  *problem = p;
  return {};
}

Status write(const Problem& p, attn_problem_t* target) {
  ATTN_RETURN_IF_ERROR(check_size("problem", target));
  attn_problem_t c = ATTN_PROBLEM_INIT;
  c.dtype = static_cast<attn_dtype_t>(p.dtype);
  c.alignment = static_cast<attn_alignment_t>(p.alignment);
  c.batch = p.batch;
  c.seqlen_q = p.seqlen_q;
  c.seqlen_kv = p.seqlen_kv;
  c.heads_q = p.heads_q;
  c.heads_kv = p.heads_kv;
  c.head_dim_qk = p.head_dim_qk;
  c.head_dim_v = p.head_dim_v;
  c.has_softmax_scale = p.softmax_scale.has_value() ? 1 : 0;
  c.softmax_scale = p.softmax_scale.value_or(0.0F);
  c.causal = p.causal ? 1 : 0;
  c.softcap = p.softcap;
  c.window_left = p.window_left;
  c.window_right = p.window_right;
  c.sinks = p.sinks ? 1 : 0;
  c.lse_with_sink = p.lse_with_sink ? 1 : 0;
  c.alibi = p.alibi ? 1 : 0;
  c.varlen_q = p.varlen_q ? 1 : 0;
  c.varlen_kv = p.varlen_kv ? 1 : 0;
  c.seqused_kv = p.seqused_kv ? 1 : 0;
  c.total_q = p.total_q;
  c.total_kv = p.total_kv;
  c.page_size = p.page_size;
  c.num_pages = p.num_pages;
  c.seqlen_new = p.seqlen_new;
  c.rotary_dim = p.rotary_dim;
  c.rotary_style = static_cast<attn_rotary_style_t>(p.rotary_style);
  c.want_lse = p.want_lse ? 1 : 0;
  c.batch_invariant = p.batch_invariant ? 1 : 0;
  c.deterministic = p.deterministic ? 1 : 0;
  c.num_splits = p.num_splits;
  c.struct_size = target->struct_size;

  // What the caller's struct has no room for must be what it stands for when it is absent.
  const attn_problem_t defaults = ATTN_PROBLEM_INIT;
  const std::size_t known = std::min(sizeof(c), target->struct_size);
  if (std::memcmp(reinterpret_cast<const char*>(&c) + known, reinterpret_cast<const char*>(&defaults) + known,
                  sizeof(c) - known) != 0) {
    return core::invalid(
        "problem.struct_size", std::to_string(target->struct_size),
        "one that has the fields which the text sets: the program was built against an older "
        "attn.h");
  }
  std::memcpy(target, &c, known);
  std::memset(reinterpret_cast<char*>(target) + known, 0, target->struct_size - known);
  return {};
}

Status read(const attn_plan_options_t* source, PlanOptions* options) {
  *options = PlanOptions{};
  if (source == nullptr) {
    return {};
  }
  attn_plan_options_t c;
  ATTN_RETURN_IF_ERROR(take("options", source, &c));
  ATTN_RETURN_IF_ERROR(zero("options.reserved", c.reserved));
  options->backend = static_cast<Backend>(c.backend);
  options->device = c.device;
  options->threads = c.threads;
  if (c.cpu_level != nullptr) {
    constexpr std::size_t kLongestName = 64;  // the names of cpu_levels() have up to 8 characters
    if (strnlen(c.cpu_level, kLongestName) == kLongestName) {
      return core::invalid("options.cpu_level", "longer than 63 characters",
                           "a level that `attn list` prints");
    }
    options->cpu_level = c.cpu_level;
  }
  if (c.kernel != nullptr) {
    constexpr std::size_t kLongestName = 256;
    if (strnlen(c.kernel, kLongestName) == kLongestName) {
      return core::invalid("options.kernel", "longer than 255 characters", "a name that `attn list` prints");
    }
    options->kernel = c.kernel;
  }
  return {};
}

Status read(const char* name, const attn_tensor_view_t* source, bool required, TensorView* view) {
  *view = TensorView{};
  if (source == nullptr) {
    return required ? core::invalid(name, "null", "the address of an attn_tensor_view_t") : Status{};
  }
  attn_tensor_view_t c;
  ATTN_RETURN_IF_ERROR(take(name, source, &c));
  if (c.reserved != 0) {
    return core::invalid(std::string(name) + ".reserved", c.reserved, "0");
  }
  if (c.dtype < ATTN_FLOAT32 || c.dtype > ATTN_BFLOAT16) {
    return core::invalid(std::string(name) + ".dtype", c.dtype, "0 (fp32), 1 (fp16), 2 (bf16)");
  }
  view->data = c.data;
  view->dtype = static_cast<DType>(c.dtype);
  std::copy(std::begin(c.shape), std::end(c.shape), view->shape.begin());
  std::copy(std::begin(c.strides), std::end(c.strides), view->strides.begin());
  return {};
}

Status read(const attn_tensors_t* source, Tensors* tensors) {
  if (source == nullptr) {
    return core::invalid("tensors", "null", "the address of an attn_tensors_t");
  }
  attn_tensors_t c;
  ATTN_RETURN_IF_ERROR(take("tensors", source, &c));
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): see take
  ATTN_RETURN_IF_ERROR(read("q", c.q, true, &tensors->q));
  ATTN_RETURN_IF_ERROR(read("k", c.k, true, &tensors->k));
  ATTN_RETURN_IF_ERROR(read("v", c.v, true, &tensors->v));
  ATTN_RETURN_IF_ERROR(read("o", c.o, true, &tensors->o));
  ATTN_RETURN_IF_ERROR(read("lse", c.lse, false, &tensors->lse));
  ATTN_RETURN_IF_ERROR(read("k_new", c.k_new, false, &tensors->k_new));
  ATTN_RETURN_IF_ERROR(read("v_new", c.v_new, false, &tensors->v_new));
  ATTN_RETURN_IF_ERROR(read("rotary_cos", c.rotary_cos, false, &tensors->rotary_cos));
  ATTN_RETURN_IF_ERROR(read("rotary_sin", c.rotary_sin, false, &tensors->rotary_sin));
  tensors->cu_seqlens_q = c.cu_seqlens_q;
  tensors->cu_seqlens_kv = c.cu_seqlens_kv;
  tensors->seqused_kv = c.seqused_kv;
  tensors->page_table = c.page_table;
  tensors->page_table_stride = c.page_table_stride;
  tensors->sinks = c.sinks;
  tensors->alibi_slopes = c.alibi_slopes;
  tensors->alibi_batch_stride = c.alibi_batch_stride;
  return {};
}

Status read(const attn_forward_options_t* source, ForwardOptions* options) {
  if (source == nullptr) {
    return {};
  }
  attn_forward_options_t c;
  ATTN_RETURN_IF_ERROR(take("options", source, &c));
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): see take
  ATTN_RETURN_IF_ERROR(zero("options.reserved", c.reserved));
  ATTN_RETURN_IF_ERROR(read_scale(c.has_softmax_scale, c.softmax_scale, &options->softmax_scale));
  ATTN_RETURN_IF_ERROR(flag("causal", c.causal, &options->causal));
  options->alignment = static_cast<Alignment>(c.alignment);
  options->window_left = c.window_left;
  options->window_right = c.window_right;
  options->softcap = c.softcap;
  ATTN_RETURN_IF_ERROR(flag("lse_with_sink", c.lse_with_sink, &options->lse_with_sink));
  options->sinks = c.sinks;
  options->alibi_slopes = c.alibi_slopes;
  ATTN_RETURN_IF_ERROR(read("lse", c.lse, false, &options->lse));
  ATTN_RETURN_IF_ERROR(flag("batch_invariant", c.batch_invariant, &options->batch_invariant));
  options->stream = c.stream;
  return read(c.plan, &options->plan);
}

}  // namespace attn::capi
