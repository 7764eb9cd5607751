# libnvlink_transfer: the C helper of include/linkspan/nvlink_transfer.h. Part of the main build, and
# all of vcache/native. It needs a C++20 compiler and threads, and nothing else to build or to load.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH nvlink_root)
file(GLOB nvlink_sources CONFIGURE_DEPENDS ${nvlink_root}/src/api/nvlink_transfer/*.cpp)
foreach(part base/environment base/fork cuda/closings cuda/device_scope cuda/driver
        cuda/error cuda/ipc cuda/library)
  list(APPEND nvlink_sources ${nvlink_root}/src/${part}.cpp)
endforeach()
find_package(Threads REQUIRED)

add_library(nvlink_transfer SHARED ${nvlink_sources})
set_target_properties(nvlink_transfer PROPERTIES
  VERSION 0.1.0 SOVERSION 0 CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_compile_definitions(nvlink_transfer PRIVATE NVLINK_TRANSFER_BUILD)
target_include_directories(nvlink_transfer PRIVATE ${nvlink_root}/src
  PUBLIC $<BUILD_INTERFACE:${nvlink_root}/include>)
target_link_libraries(nvlink_transfer PRIVATE $<BUILD_INTERFACE:Threads::Threads>
                      ${CMAKE_DL_LIBS})
if(WIN32)
  set_target_properties(nvlink_transfer PROPERTIES PREFIX "")  # nvlink_transfer.dll everywhere
  if(MINGW)
    target_link_options(nvlink_transfer PRIVATE -static)
  endif()
elseif(NOT APPLE)
  set(nvlink_exports ${nvlink_root}/cmake/nvlink_transfer.map)
  target_link_options(nvlink_transfer PRIVATE -Wl,--version-script=${nvlink_exports}
                      -Wl,-z,nodelete)  # its threads may outlive a dlclose()
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # their runtime comes with the program
    target_link_options(nvlink_transfer PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(nvlink_transfer PROPERTIES LINK_DEPENDS ${nvlink_exports})
endif()
