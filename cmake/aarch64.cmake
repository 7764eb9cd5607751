# Toolchain: 64-bit ARM Linux by Debian's g++-aarch64-linux-gnu, and the libraries that ./dev unpacks
# (setup_aarch64). Headers that are the same for every processor, and CMake's files about them, are the host's.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(libraries $ENV{XDG_CACHE_HOME}/linkspan/aarch64/usr)
else()
  set(libraries $ENV{HOME}/.cache/linkspan/aarch64/usr)
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${libraries}/include/aarch64-linux-gnu)  # openssl/configuration.h
set(CMAKE_FIND_ROOT_PATH ${libraries} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(OPENSSL_USE_STATIC_LIBS ON)
set(FlatBuffers_DIR /usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake/flatbuffers)  # flatc runs here
