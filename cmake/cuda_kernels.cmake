# The manifest's road: each line of src/cuda/instances/manifest.json becomes a .cu in the build tree, a cubin
# beside what the compiler said of it (NAME.log), and an entry of the kernel table with the cubin embedded.
#   attn_cuda_kernels(<list> OUT_TABLE <variable> OUT_CUBINS <variable>)   list: "kernels" or "study"
function(attn_cuda_kernels list)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUT_TABLE;OUT_CUBINS" "")
  set(manifest ${PROJECT_SOURCE_DIR}/src/cuda/instances/manifest.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${manifest})
  file(READ ${manifest} json)
  file(GLOB device_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/device/*.hpp
       ${PROJECT_SOURCE_DIR}/src/cuda/sm90/*.hpp ${PROJECT_SOURCE_DIR}/src/cuda/params.h)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${list})
  set(cubins "")
  set(entries "")
  set(symbols "")
  set(embedded "")
  string(JSON count LENGTH "${json}" ${list})
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    set(key "")
    set(config "")
    string(JSON fields LENGTH "${json}" ${list} ${i})
    math(EXPR last_field "${fields} - 1")
    foreach(f RANGE ${last_field})
      string(JSON field MEMBER "${json}" ${list} ${i} ${f})
      string(JSON value GET "${json}" ${list} ${i} ${field})
      if(field STREQUAL "name")
        set(name ${value})
      elseif(field STREQUAL "element")
        string(REPLACE "bf16" "kBFloat16" value ${value})
        string(REPLACE "fp16" "kFloat16" value ${value})
        set(key_element ".element = attn::sm90::Element::${value}, ")
      elseif(field STREQUAL "head_dim_qk" OR field STREQUAL "head_dim_v")
        set(key_${field} ".${field} = ${value}, ")
      elseif(field STREQUAL "mask")
        string(REPLACE "full" "kFull" value ${value})
        string(REPLACE "band" "kBand" value ${value})
        set(key_mask ".mask = attn::sm90::Mask::${value}, ")
      elseif(field STREQUAL "logits")
        string(REPLACE "scaled" "kScaled" value ${value})
        string(REPLACE "changed" "kChanged" value ${value})
        set(key_logits ".logits = attn::sm90::Logits::${value}, ")
      elseif(field STREQUAL "softmax")
        string(REPLACE "classic" "kClassic" value ${value})
        string(REPLACE "speculative" "kSpeculative" value ${value})
        set(config_softmax ".softmax = attn::sm90::Softmax::${value}, ")
      else()
        # Booleans come as ON and OFF from string(JSON).
        string(REGEX REPLACE "^(ON|TRUE)$" "true" value "${value}")
        string(REGEX REPLACE "^(OFF|FALSE)$" "false" value "${value}")
        set(config_${field} ".${field} = ${value}, ")
      endif()
    endforeach()
    # Designated initialisers come in the order of the structs.
    foreach(field element head_dim_qk head_dim_v mask logits)
      string(APPEND key "${key_${field}}")
      unset(key_${field})
    endforeach()
    foreach(field warpgroups tile_n k_stages v_stages q_slots softmax short_first output_first ping_pong producer_registers
            consumer_registers)
      string(APPEND config "${config_${field}}")
      unset(config_${field})
    endforeach()
    configure_file(${PROJECT_SOURCE_DIR}/src/cuda/instances/kernel.cu.in ${folder}/${name}.cu @ONLY)
    set(cubin ${folder}/${name}.cubin)
    add_custom_command(
      OUTPUT ${cubin}
      BYPRODUCTS ${folder}/${name}.log
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/compile_kernel.sh ${folder}/${name}.log ${ATTN_NVCC_PATH}
              -cubin -std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a
              -Xptxas -v -ccbin ${CMAKE_CXX_COMPILER} -I${PROJECT_SOURCE_DIR}/src -I${ATTN_CUTLASS_INCLUDE}
              -o ${cubin} ${folder}/${name}.cu
      DEPENDS ${folder}/${name}.cu ${device_headers} ${PROJECT_SOURCE_DIR}/cmake/compile_kernel.sh
      COMMENT "nvcc ${name}"
      VERBATIM)
    list(APPEND cubins ${cubin})
    string(APPEND symbols "extern \"C\" const unsigned char attn_cubin_${name}[], attn_cubin_${name}_end[];\n")
    string(APPEND embedded
      "asm(\".section .rodata\\n.balign 16\\n.globl attn_cubin_${name}\\n.hidden attn_cubin_${name}\\n\"\n"
      "    \"attn_cubin_${name}:\\n.incbin \\\"${cubin}\\\"\\n.globl attn_cubin_${name}_end\\n\"\n"
      "    \".hidden attn_cubin_${name}_end\\nattn_cubin_${name}_end:\\n.byte 0\\n.previous\\n\");\n")
    string(APPEND entries
      "    {\"${name}\", {${key}}, {${config}},\n     attn_cubin_${name},"
      " static_cast<std::size_t>(attn_cubin_${name}_end - attn_cubin_${name})},\n")
  endforeach()
  string(TOUPPER ${list} upper)
  file(CONFIGURE OUTPUT ${folder}/table.cpp @ONLY CONTENT
"// Made by cmake/cuda_kernels.cmake from src/cuda/instances/manifest.json, list \"${list}\".
#include \"cuda/kernel_table.hpp\"

${embedded}
${symbols}
namespace attn::cuda {

std::span<const KernelEntry> ${list}_table() noexcept {
  static const KernelEntry entries[] = {
${entries}  };
  return entries;
}

}  // namespace attn::cuda
")
  set_source_files_properties(${folder}/table.cpp PROPERTIES OBJECT_DEPENDS "${cubins}")
  set(${arg_OUT_TABLE} ${folder}/table.cpp PARENT_SCOPE)
  set(${arg_OUT_CUBINS} ${cubins} PARENT_SCOPE)
  list(LENGTH cubins number)
  message(STATUS "CUDA kernels (${list}): ${number}")
endfunction()
