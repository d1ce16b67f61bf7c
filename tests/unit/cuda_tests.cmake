# The CUDA backend without a GPU. The layouts test runs CuTe's algebra on the host (its headers need CUDA's), and
# the tiles test the tile scheduler's arithmetic.
if(ATTN_HAVE_CUDA)
  attn_unit_test(unit_cuda SOURCES cuda_forward_test.cpp cuda_gpu_test.cpp cuda_graph_test.cpp
                 cuda_host_test.cpp cuda_tiles_test.cpp)
  target_include_directories(unit_cuda SYSTEM PRIVATE ${ATTN_CUDA_INCLUDE} ${ATTN_CUTLASS_INCLUDE}
                             ${ATTN_CUDA_INCLUDE}/cccl)
  set_source_files_properties(cuda_tiles_test.cpp PROPERTIES
    COMPILE_OPTIONS -Wno-unknown-pragmas)  # unroll; GCC 12 takes no pragma against the warning (GCC bug 53431)

  add_executable(unit_cuda_layouts cuda_layouts_test.cpp)
  target_compile_features(unit_cuda_layouts PRIVATE cxx_std_20)
  target_compile_options(unit_cuda_layouts PRIVATE -O0)  # CuTe is slow to compile, and the test is small
  target_include_directories(unit_cuda_layouts PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(unit_cuda_layouts SYSTEM PRIVATE ${ATTN_CUTLASS_INCLUDE} ${ATTN_CUDA_INCLUDE}
                             ${ATTN_CUDA_INCLUDE}/cccl)
  target_link_libraries(unit_cuda_layouts PRIVATE GTest::gtest_main)
  gtest_discover_tests(unit_cuda_layouts PROPERTIES LABELS unit)
endif()
