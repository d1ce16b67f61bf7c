# Writes build_info.hpp, only when its content changes. Outside a git checkout the commit is "unknown".
cmake_minimum_required(VERSION 3.25)
find_package(Git QUIET)
set(commit unknown)
set(dirty false)
if(GIT_FOUND AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)  # no commit yet, or a checkout that git will not read
    set(commit unknown)
  else()
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(dirty true)
    endif()
  endif()
endif()
foreach(name HIGHWAY TBB)
  if(NOT ${name})
    set(${name} unknown)
  endif()
endforeach()
string(REPLACE "\"" "\\\"" FLAGS "${FLAGS}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"// Written by tools/attn/build_info.cmake.
#pragma once

namespace attn::tool {
inline constexpr const char* kBuildCommit = \"@commit@\";
inline constexpr bool kBuildDirty = @dirty@;
inline constexpr const char* kBuildCompiler = \"@COMPILER@\";
inline constexpr const char* kBuildFlags = \"@FLAGS@\";
inline constexpr const char* kHighwayVersion = \"@HIGHWAY@\";
inline constexpr const char* kTbbVersion = \"@TBB@\";
}  // namespace attn::tool
")
