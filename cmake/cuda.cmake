# The CUDA part: whether it is built, with which compiler. Options:
#   ATTN_CUDA   AUTO (built if a compiler and CUTLASS are found), ON (required), OFF
#   ATTN_NVCC   path of nvcc; empty: the pinned wheels in ATTN_CUDA_ENV, else nvcc on PATH
#   CUTLASS_DIR folder that holds include/cutlass and include/cute; empty: the pinned wheel
#   ATTN_CUDA_ENV  a Python environment with the wheels of cmake/cuda-requirements.txt (./dev makes .venv-cuda)
# Result: ATTN_HAVE_CUDA, ATTN_NVCC_PATH, ATTN_CUDA_INCLUDE (cuda.h), ATTN_CUTLASS_INCLUDE, ATTN_CUDA_REASON.
set(ATTN_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE ATTN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ATTN_NVCC "" CACHE FILEPATH "nvcc to use instead of the pinned one")
set(CUTLASS_DIR "" CACHE PATH "CUTLASS 4.2 source tree to use instead of the pinned wheel")
set(ATTN_CUDA_ENV "${PROJECT_SOURCE_DIR}/.venv-cuda" CACHE PATH "Python environment with the pinned CUDA wheels")

set(ATTN_HAVE_CUDA FALSE)
set(ATTN_CUDA_REASON "ATTN_CUDA=OFF")
if(NOT ATTN_CUDA STREQUAL "OFF")
  file(GLOB site_packages LIST_DIRECTORIES true "${ATTN_CUDA_ENV}/lib/python3*/site-packages")
  if(site_packages)
    list(GET site_packages 0 site_packages)
  endif()
  # The compiler: the user's, the wheels', PATH's.
  set(ATTN_NVCC_PATH "${ATTN_NVCC}")
  if(NOT ATTN_NVCC_PATH AND EXISTS "${site_packages}/nvidia/cu13/bin/nvcc")
    set(ATTN_NVCC_PATH "${site_packages}/nvidia/cu13/bin/nvcc")
  endif()
  if(NOT ATTN_NVCC_PATH)
    find_program(ATTN_NVCC_ON_PATH nvcc)
    mark_as_advanced(ATTN_NVCC_ON_PATH)
    if(ATTN_NVCC_ON_PATH)
      set(ATTN_NVCC_PATH "${ATTN_NVCC_ON_PATH}")
    endif()
  endif()
  if(ATTN_NVCC_PATH)
    file(REAL_PATH "${ATTN_NVCC_PATH}" nvcc_real)
    get_filename_component(nvcc_bin "${nvcc_real}" DIRECTORY)
    find_path(ATTN_CUDA_INCLUDE cuda.h HINTS "${nvcc_bin}/../include" "${nvcc_bin}/../targets/x86_64-linux/include"
              "${site_packages}/nvidia/cu13/include" NO_DEFAULT_PATH)
  endif()
  find_path(ATTN_CUTLASS_INCLUDE cute/tensor.hpp
            HINTS "${CUTLASS_DIR}/include" "${site_packages}/cutlass_library/source/include" NO_DEFAULT_PATH)
  mark_as_advanced(ATTN_CUDA_INCLUDE ATTN_CUTLASS_INCLUDE)

  set(ATTN_CUDA_ENV_BIN "${site_packages}/nvidia/cu13/bin")  # the disassembler, for the tests
  if(NOT ATTN_NVCC_PATH)
    set(ATTN_CUDA_REASON "no nvcc: neither ATTN_NVCC, nor the wheels in ${ATTN_CUDA_ENV}, nor PATH has one")
  elseif(NOT ATTN_CUDA_INCLUDE)
    set(ATTN_CUDA_REASON "no cuda.h beside ${ATTN_NVCC_PATH}")
  elseif(NOT ATTN_CUTLASS_INCLUDE)
    set(ATTN_CUDA_REASON "no CUTLASS: neither CUTLASS_DIR nor ${ATTN_CUDA_ENV} has include/cute/tensor.hpp")
  else()
    set(ATTN_HAVE_CUDA TRUE)
    set(ATTN_CUDA_REASON "${ATTN_NVCC_PATH}")
  endif()
  if(ATTN_CUDA STREQUAL "ON" AND NOT ATTN_HAVE_CUDA)
    message(FATAL_ERROR "ATTN_CUDA=ON, but: ${ATTN_CUDA_REASON}")
  endif()
endif()
message(STATUS "CUDA backend: ${ATTN_HAVE_CUDA} (${ATTN_CUDA_REASON})")
