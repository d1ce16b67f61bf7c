# Tests of src/io. Links only the room itself, so that files can be tested without the rest.
add_executable(unit_io io_array_test.cpp io_file_test.cpp io_interop_test.cpp io_npy_test.cpp
               io_safetensors_test.cpp io_safetensors_write_test.cpp)
target_link_libraries(unit_io PRIVATE attn_io GTest::gtest_main)
target_compile_definitions(unit_io PRIVATE
  ATTN_PYTHON="${Python3_EXECUTABLE}" ATTN_INTEROP_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/io_interop.py")
gtest_discover_tests(unit_io PROPERTIES LABELS unit)
