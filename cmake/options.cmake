# Options of the build and the compile settings that every target of the project shares. As a subproject the
# tools, tests, benchmarks and install rules are off, and the parent's build type is left alone.
option(ATTN_BUILD_TOOLS "Build the command attn" ${PROJECT_IS_TOP_LEVEL})
option(ATTN_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ATTN_BUILD_BENCH "Build the micro-benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(ATTN_INSTALL "Define the install rules" ${PROJECT_IS_TOP_LEVEL})
option(ATTN_WERROR "Treat warnings as errors" OFF)
set(ATTN_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, such as address,undefined")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Compile settings of the project's own code. No -march: what is shipped runs on the plain baseline and
# dispatches at run time. No contraction: the meaning of scalar code is that of the text.
add_library(attn_settings INTERFACE)
target_compile_features(attn_settings INTERFACE cxx_std_20)
target_compile_options(attn_settings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-psabi -ffp-contract=off
  # GCC 12 warns of overlapping copies in `"text" + std::string` where there are none (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<BOOL:${ATTN_WERROR}>:-Werror>)
target_include_directories(attn_settings INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
if(ATTN_SANITIZE)
  target_compile_options(attn_settings INTERFACE -fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(attn_settings INTERFACE -fsanitize=${ATTN_SANITIZE})
endif()
