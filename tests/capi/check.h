/* Checks of the C tests: each prints what failed and counts it; a program's exit code is done(). */
#ifndef ATTN_TESTS_CAPI_CHECK_H_
#define ATTN_TESTS_CAPI_CHECK_H_

#include <math.h>
#include <stdio.h>
#include <string.h>

static int check_failures = 0;
static int check_count = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    ++check_count;                                                            \
    if (!(condition)) {                                                       \
      ++check_failures;                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                         \
  } while (0)

#define CHECK_NEAR(value, wanted, tolerance)                                                    \
  do {                                                                                          \
    const double check_value = (double)(value), check_wanted = (double)(wanted);                \
    ++check_count;                                                                              \
    if (!(fabs(check_value - check_wanted) <= (tolerance))) {                                   \
      ++check_failures;                                                                         \
      fprintf(stderr, "%s:%d: %s is %.9g, not %.9g\n", __FILE__, __LINE__, #value, check_value, \
              check_wanted);                                                                    \
    }                                                                                           \
  } while (0)

/* A call that must be refused with this code and a message that holds this text. */
#define CHECK_REFUSED(call, code, text)                                                               \
  do {                                                                                                \
    const attn_status_t check_status = (call);                                                        \
    ++check_count;                                                                                    \
    if (check_status != (code) || strstr(attn_last_error(), (text)) == NULL) {                        \
      ++check_failures;                                                                               \
      fprintf(stderr, "%s:%d: %s gave %d, \"%s\"; wanted %d and \"%s\"\n", __FILE__, __LINE__, #call, \
              (int)check_status, attn_last_error(), (int)(code), (text));                             \
    }                                                                                                 \
  } while (0)

#define CHECK_OK(call)                                                                             \
  do {                                                                                             \
    const attn_status_t check_status = (call);                                                     \
    ++check_count;                                                                                 \
    if (check_status != ATTN_OK) {                                                                 \
      ++check_failures;                                                                            \
      fprintf(stderr, "%s:%d: %s gave %d, \"%s\"\n", __FILE__, __LINE__, #call, (int)check_status, \
              attn_last_error());                                                                  \
    }                                                                                              \
  } while (0)

static int done(void) {
  printf("%d checks, %d failed\n", check_count, check_failures);
  return check_failures == 0 && check_count > 0 ? 0 : 1;
}

#endif
