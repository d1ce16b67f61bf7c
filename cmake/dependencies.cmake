# What libattn needs to be built. Found here, once, so that the imported targets are visible in every room.
# Highway and oneTBB are shared libraries on Debian and Ubuntu; cmake/install.cmake stages them beside libattn.
# The command and the tests need nlohmann_json, CLI11 and GTest too and look for them themselves.
find_package(Threads REQUIRED)
if(NOT TARGET hwy::hwy)
  find_package(hwy 1.0.3 REQUIRED)
endif()
if(NOT TARGET TBB::tbb)
  find_package(TBB 2021.8 REQUIRED)
endif()
if(NOT TARGET fmt::fmt-header-only)
  find_package(fmt 9 REQUIRED)
endif()
