/* A program built against the frozen first header must run with the current library (report B45). */
#include "attn_v1.h"
#include "hand_values.h"

int main(void) {
  CHECK(attn_version_number() >= ATTN_VERSION_NUMBER);
  return hand_values();
}
