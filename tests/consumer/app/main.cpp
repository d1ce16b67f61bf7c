// A user's program: one attention through the public headers only, checked against its value by hand.
// Logits are ln 1 and ln 3, so the weights are 1/4 and 3/4, and the LSE is ln 4.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>

int main() {
  const float q[] = {1.0F, 0.0F};
  const float k[] = {0.0F, 7.0F, std::log(3.0F), -2.0F};
  const float v[] = {1.0F, 2.0F, 5.0F, 6.0F};
  float o[2] = {};
  float lse[1] = {};
  const auto view = [](const float* data, std::int64_t seqlen) {
    return attn::TensorView::bshd(data, attn::DType::kFloat32, 1, seqlen, 1, 2);
  };
  attn::ForwardOptions options;
  options.softmax_scale = 1.0F;
  options.lse = attn::TensorView::lse(lse, 1, 1, 1);
  const attn::Status status = attn::forward(view(q, 1), view(k, 2), view(v, 2), view(o, 1), options);
  if (!status.ok()) {
    std::printf("forward: %s\n", status.message().c_str());
    return 1;
  }
  // A refusal has to come back as a status too, with its text, across the library's boundary.
  const attn::Status refused = attn::forward(view(q, 1), view(k, 2), view(v, 1), view(o, 1), options);
  char headers[32];
  std::snprintf(headers, sizeof headers, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
                ATTN_VERSION_PATCH);
  std::printf("attn %s, headers %s: O = %g %g, LSE = %g; refusal: %s\n", attn::version(), headers, o[0], o[1],
              lse[0], refused.message().c_str());
  const bool right = std::fabs(o[0] - 4.0F) < 1e-5F && std::fabs(o[1] - 5.0F) < 1e-5F &&
                     std::fabs(lse[0] - std::log(4.0F)) < 1e-5F;
  return right && !refused.ok() && !refused.message().empty() && std::strcmp(attn::version(), headers) == 0
             ? 0
             : 2;
}
