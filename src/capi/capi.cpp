// The functions of attn.h that need no plan handle. Tested in tests/capi.
#include <attn/attn.h>

#include <attn/attn.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capi/error.hpp"
#include "capi/structs.hpp"
#include "capi/text.hpp"
#include "core/refusal.hpp"

using attn::Status;
using attn::capi::guarded;

// The two faces name the same values.
static_assert(ATTN_INTERNAL == static_cast<int>(attn::StatusCode::kInternal));
static_assert(ATTN_FILE_ERROR == static_cast<int>(attn::StatusCode::kFileError));
static_assert(ATTN_BACKEND_ERROR == static_cast<int>(attn::StatusCode::kBackendError));
static_assert(ATTN_OUT_OF_MEMORY == static_cast<int>(attn::StatusCode::kOutOfMemory));
static_assert(ATTN_UNAVAILABLE == static_cast<int>(attn::StatusCode::kUnavailable));
static_assert(ATTN_UNSUPPORTED == static_cast<int>(attn::StatusCode::kUnsupported));
static_assert(ATTN_INVALID_ARGUMENT == static_cast<int>(attn::StatusCode::kInvalidArgument));
static_assert(ATTN_FLOAT32 == static_cast<int>(attn::DType::kFloat32));
static_assert(ATTN_FLOAT16 == static_cast<int>(attn::DType::kFloat16));
static_assert(ATTN_BFLOAT16 == static_cast<int>(attn::DType::kBFloat16));
static_assert(ATTN_BACKEND_CPU == static_cast<int>(attn::Backend::kCpu));
static_assert(ATTN_BACKEND_CUDA == static_cast<int>(attn::Backend::kCuda));
static_assert(ATTN_ALIGN_TOP_LEFT == static_cast<int>(attn::Alignment::kTopLeft));
static_assert(ATTN_ALIGN_BOTTOM_RIGHT == static_cast<int>(attn::Alignment::kBottomRight));
static_assert(ATTN_ROTARY_INTERLEAVED == static_cast<int>(attn::RotaryStyle::kInterleaved));

const char* attn_version(void) {
  return attn::version();
}

int32_t attn_version_number(void) {
  return ATTN_VERSION_NUMBER;
}

const char* attn_status_string(attn_status_t status) {
  return attn::to_string(static_cast<attn::StatusCode>(status));
}

const char* attn_last_error(void) {
  return attn::capi::last_error();
}

attn_status_t attn_problem_parse(const char* text, attn_problem_t* problem) {
  return guarded([&]() -> Status {
    if (text == nullptr) {
      return attn::core::invalid("text", "null", "a problem string");
    }
    if (problem == nullptr) {
      return attn::core::invalid("problem", "null", "the address of an attn_problem_t");
    }
    attn::Problem p;
    ATTN_RETURN_IF_ERROR(attn::parse(text, &p));
    return attn::capi::write(p, problem);
  });
}

attn_status_t attn_problem_to_string(const attn_problem_t* problem, char* buffer, size_t capacity,
                                     size_t* length) {
  return guarded([&]() -> Status {
    attn::Problem p;
    ATTN_RETURN_IF_ERROR(attn::capi::read(problem, &p));
    ATTN_RETURN_IF_ERROR(attn::capi::check_buffer(buffer, capacity));
    attn::capi::copy_text(attn::to_string(p), buffer, capacity, length);
    return {};
  });
}

attn_status_t attn_validate(const attn_problem_t* problem) {
  return guarded([&]() -> Status {
    attn::Problem p;
    ATTN_RETURN_IF_ERROR(attn::capi::read(problem, &p));
    return attn::validate(p);
  });
}

attn_status_t attn_validate_tensors(const attn_problem_t* problem, const attn_tensors_t* tensors,
                                    int32_t metadata_on_host) {
  return guarded([&]() -> Status {
    attn::Problem p;
    attn::Tensors t;
    ATTN_RETURN_IF_ERROR(attn::capi::read(problem, &p));
    ATTN_RETURN_IF_ERROR(attn::capi::read(tensors, &t));
    return attn::validate(p, t, metadata_on_host != 0);
  });
}

attn_status_t attn_support(const attn_problem_t* problem, const attn_plan_options_t* options,
                           attn_backend_t backend, int32_t* supported, char* buffer, size_t capacity,
                           size_t* length) {
  return guarded([&]() -> Status {
    if (supported == nullptr) {
      return attn::core::invalid("supported", "null", "the address of a variable for the answer");
    }
    ATTN_RETURN_IF_ERROR(attn::capi::check_buffer(buffer, capacity));
    attn::Problem p;
    attn::PlanOptions o;
    ATTN_RETURN_IF_ERROR(attn::capi::read(problem, &p));
    ATTN_RETURN_IF_ERROR(attn::capi::read(options, &o));
    ATTN_RETURN_IF_ERROR(attn::validate(p));
    for (const attn::BackendSupport& entry : attn::support(p, o)) {
      if (static_cast<attn_backend_t>(entry.backend) == backend) {
        *supported = entry.supported ? 1 : 0;
        attn::capi::copy_text(entry.reason, buffer, capacity, length);
        return {};
      }
    }
    return attn::core::invalid("backend", backend, "1 (cpu), 2 (cuda)");
  });
}

attn_status_t attn_forward(const attn_tensor_view_t* q, const attn_tensor_view_t* k,
                           const attn_tensor_view_t* v, const attn_tensor_view_t* o,
                           const attn_forward_options_t* options) {
  return guarded([&]() -> Status {
    attn::TensorView views[4];
    ATTN_RETURN_IF_ERROR(attn::capi::read("q", q, true, &views[0]));
    ATTN_RETURN_IF_ERROR(attn::capi::read("k", k, true, &views[1]));
    ATTN_RETURN_IF_ERROR(attn::capi::read("v", v, true, &views[2]));
    ATTN_RETURN_IF_ERROR(attn::capi::read("o", o, true, &views[3]));
    attn::ForwardOptions opts;
    ATTN_RETURN_IF_ERROR(attn::capi::read(options, &opts));
    return attn::forward(views[0], views[1], views[2], views[3], opts);
  });
}

attn_status_t attn_merge_partials(size_t num_partials, const attn_tensor_view_t* const* o_partials,
                                  const attn_tensor_view_t* const* lse_partials, const attn_tensor_view_t* o,
                                  const attn_tensor_view_t* lse) {
  return guarded([&]() -> Status {
    // More than any machine's ring or split; a garbage count must not become an allocation.
    constexpr std::int64_t kMostPartials = 1 << 20;
    const bool fits = num_partials <= static_cast<size_t>(kMostPartials);
    if (num_partials == 0 || !fits) {
      return attn::core::invalid("num_partials", std::to_string(num_partials), "1 to 1048576");
    }
    if (o_partials == nullptr || lse_partials == nullptr) {
      return attn::core::invalid(o_partials == nullptr ? "o_partials" : "lse_partials", "null",
                                 "an array of num_partials pointers");
    }
    std::vector<attn::Partial> partials(num_partials);
    for (size_t i = 0; i < num_partials; ++i) {
      const std::string index = "[" + std::to_string(i) + "]";
      ATTN_RETURN_IF_ERROR(
          attn::capi::read(("o_partials" + index).c_str(), o_partials[i], true, &partials[i].o));
      ATTN_RETURN_IF_ERROR(
          attn::capi::read(("lse_partials" + index).c_str(), lse_partials[i], true, &partials[i].lse));
    }
    attn::TensorView out;
    attn::TensorView out_lse;
    ATTN_RETURN_IF_ERROR(attn::capi::read("o", o, true, &out));
    ATTN_RETURN_IF_ERROR(attn::capi::read("lse", lse, false, &out_lse));
    return attn::merge_partials(partials, out, out_lse);
  });
}
