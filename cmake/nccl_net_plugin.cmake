# The network plugins of the tests: modules that are loaded by name, one for each version of the ABI,
# one of a version that nobody knows and one without any.
set(plugin_folder ${CMAKE_SOURCE_DIR}/tests/support/nccl_net_plugin)
linkspan_glob(plugin_sources tests/support/nccl_net_plugin)
list(FILTER plugin_sources EXCLUDE REGEX "/(table|unknown_version|no_table)\\.cpp$")

# As with any plugin, its functions are called by pointers whose types are the caller's own.
set(plugin_options)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=.*undefined")
  set(plugin_options -fno-sanitize=function)
endif()

add_library(nccl_net_plugin_parts OBJECT ${plugin_sources})
target_include_directories(nccl_net_plugin_parts PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(nccl_net_plugin_parts PRIVATE ${plugin_options})
target_link_libraries(nccl_net_plugin_parts PRIVATE linkspan_common)

function(linkspan_nccl_net_plugin suffix)
  set(target nccl_net_plugin${suffix})
  add_library(${target} MODULE ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME nccl-net-linkspan-test${suffix})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${plugin_options})
  target_link_libraries(${target} PRIVATE -Wl,--as-needed linkspan_internal)
  target_link_options(${target} PRIVATE -Wl,--version-script=${plugin_folder}/exports.map)
  set(nccl_net_plugins ${nccl_net_plugins} ${target} PARENT_SCOPE)
endfunction()

foreach(version RANGE 5 12)
  set(suffix -v${version})
  if(version EQUAL 7)
    set(suffix "")
  endif()
  linkspan_nccl_net_plugin("${suffix}" ${plugin_folder}/table.cpp $<TARGET_OBJECTS:nccl_net_plugin_parts>)
  target_compile_definitions(nccl_net_plugin${suffix} PRIVATE NCCL_NET_VERSION=${version})
endforeach()
linkspan_nccl_net_plugin(-v4 ${plugin_folder}/unknown_version.cpp)
linkspan_nccl_net_plugin(-none ${plugin_folder}/no_table.cpp)
