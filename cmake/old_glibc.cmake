# What ships is linked by linkspan_old_glibc(TARGET). With -DLINKSPAN_OLD_GLIBC=2.28 it asks for symbols
# of that glibc at most, and for no libstdc++ or OpenSSL of the host; only the link differs.
set(LINKSPAN_OLD_GLIBC "" CACHE STRING "Oldest glibc that what ships needs; empty: this machine's")
if(LINKSPAN_OLD_GLIBC)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()

add_library(linkspan_glibc_replacements OBJECT src/old_glibc/replacements.cpp)
target_include_directories(linkspan_glibc_replacements PRIVATE src)
add_library(linkspan_glibc_start OBJECT src/old_glibc/start.cpp)

# linkspan_link_for_glibc(TARGET VERSION): the function above when it is on; also of a test.
function(linkspan_link_for_glibc target version)
  set(stubs ${CMAKE_BINARY_DIR}/glibc-${version})
  set(script ${CMAKE_SOURCE_DIR}/scripts/make_glibc_stubs.py)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
  if(NOT EXISTS ${stubs}/libc.so OR ${script} IS_NEWER_THAN ${stubs}/libc.so)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${script} ${version} ${stubs} ${CMAKE_CXX_COMPILER}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:linkspan_glibc_replacements>)
  target_link_options(${target} PRIVATE -L${stubs} -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:linkspan_glibc_start>)
    target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
  endif()
endfunction()

function(linkspan_old_glibc target)
  if(LINKSPAN_OLD_GLIBC)
    linkspan_link_for_glibc(${target} ${LINKSPAN_OLD_GLIBC})
  endif()
endfunction()
