# Toolchain of a cross build for aarch64 Linux with Debian's cross compiler. The libraries come from ATTN_SYSROOT,
# a folder into which the distribution's arm64 packages were unpacked (`./dev cross` makes build-aarch64/sysroot);
# libc and libstdc++ are the cross compiler's own. Programs of the build, the tests too, run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(ATTN_SYSROOT "" CACHE PATH "Folder with the unpacked arm64 packages of what libattn needs")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTN_SYSROOT)
set(CMAKE_FIND_ROOT_PATH "${ATTN_SYSROOT}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(ATTN_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(ATTN_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${ATTN_QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
