# Install rules: a relocatable tree. Headers, both libraries, the CMake package, attn.pc, the command, and the
# run-time libraries that Debian has only as shared ones, staged beside libattn under their sonames and found
# through RUNPATH $ORIGIN. Tested by tests/consumer (as a user sees it) and tests/abi (what the files need).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(TARGETS attn attn_static EXPORT attn
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
if(TARGET attn_command)
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(attn_command PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  install(TARGETS attn_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()

# Stages an imported shared library and the licence that Debian ships with it.
function(attn_stage target debian_package)
  get_target_property(type ${target} TYPE)
  get_target_property(imported ${target} IMPORTED)
  if(NOT imported OR NOT type MATCHES "^(SHARED|UNKNOWN)_LIBRARY$")
    return()  # built in the same project, or linked in statically
  endif()
  install(FILES $<TARGET_FILE:${target}> DESTINATION ${CMAKE_INSTALL_LIBDIR}
          RENAME $<TARGET_SONAME_FILE_NAME:${target}> COMPONENT runtime)
  if(EXISTS /usr/share/doc/${debian_package}/copyright)
    install(FILES /usr/share/doc/${debian_package}/copyright COMPONENT runtime
            DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party RENAME ${debian_package}.txt)
  endif()
endfunction()
attn_stage(hwy::hwy libhwy1)
attn_stage(TBB::tbb libtbb12)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

# find_package(attn)
install(EXPORT attn NAMESPACE attn:: DESTINATION ${package_dir} FILE attn-targets.cmake COMPONENT dev)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/attn-config.cmake.in attn-config.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR)
# Before 1.0 a minor version may break the ABI, as semantic versioning says.
write_basic_package_version_file(attn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attn-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/attn-config-version.cmake
        DESTINATION ${package_dir} COMPONENT dev)

# pkg-config: relative to the file's own place, so that the tree may be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/attn.pc.in attn.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
