# The CPU backend's own tests: kernels of every level against plain code, threads, plans, and whole problems.
attn_unit_test(unit_cpu
  SOURCES cpu_amx_parts_test.cpp cpu_amx_small_values_test.cpp cpu_amx_test.cpp cpu_attention_test.cpp
          cpu_convert_test.cpp cpu_kernels_test.cpp cpu_levels_test.cpp cpu_partition_test.cpp cpu_plan_test.cpp cpu_special_values_test.cpp cpu_threads_test.cpp
  LIBRARIES attn_reference)

attn_unit_test(unit_cpu_helpers SOURCES cpu_helpers_test.cpp)

# The same on CPUs that lack levels of this build, where an emulator is there: a level that does not run must
# not be touched, not even to fill its table.
find_program(ATTN_QEMU_X86_64 qemu-x86_64)
if(ATTN_QEMU_X86_64 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT ATTN_SANITIZE)
  # SSE3 only; SSE4.2 without AES, which Highway's SSE4 has; with it; AVX2 without AVX-512.
  foreach(cpu_level Opteron_G1/scalar Nehalem/scalar Westmere/sse4 Haswell/avx2)
    string(REPLACE "/" ";" pair ${cpu_level})
    list(GET pair 0 cpu)
    list(GET pair 1 level)
    add_test(NAME unit_cpu_on_${cpu} COMMAND ${ATTN_QEMU_X86_64} -cpu ${cpu} $<TARGET_FILE:unit_cpu>
             --gtest_filter=CpuLevels.*:*Edges*:*Append*:*Poison*:-*Peaks*)
    set_tests_properties(unit_cpu_on_${cpu} PROPERTIES LABELS unit ENVIRONMENT ATTN_TEST_BEST_LEVEL=${level})
  endforeach()
endif()
