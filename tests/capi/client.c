/* A program in C11 against the current header. */
#include <attn/attn.h>

#include "hand_values.h"

int main(void) {
  CHECK(attn_version_number() == ATTN_VERSION_NUMBER);
  return hand_values();
}
