# The CPU backend's own tests: kernels of every level against plain code, threads, plans, and whole problems.
attn_unit_test(unit_cpu
  SOURCES cpu_attention_test.cpp cpu_convert_test.cpp cpu_kernels_test.cpp cpu_levels_test.cpp
          cpu_plan_test.cpp cpu_threads_test.cpp
  LIBRARIES attn_reference)
