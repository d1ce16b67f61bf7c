// Stands for another version of libattn in the same process: its definitions come first in the global scope,
// and a library that calls its own functions through that scope would get these.
#include <attn/attn.hpp>

namespace attn::inline v1 {

Status validate(const Problem& /*problem*/) {
  return {StatusCode::kInternal, "interposed"};
}
Status make_plan(const Problem& /*problem*/, const PlanOptions& /*options*/, Plan* /*plan*/) {
  return {StatusCode::kInternal, "interposed"};
}
Status run(const Plan& /*plan*/, const Tensors& /*tensors*/, void* /*workspace*/, std::size_t /*bytes*/,
           void* /*stream*/) {
  return {StatusCode::kInternal, "interposed"};
}
Status forward(const TensorView& /*q*/, const TensorView& /*k*/, const TensorView& /*v*/,
               const TensorView& /*o*/, const ForwardOptions& /*options*/) {
  return {StatusCode::kInternal, "interposed"};
}
const char* version() noexcept {
  return "interposed";
}

}  // namespace attn::inline v1
