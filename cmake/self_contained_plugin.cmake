# linkspan_self_contained(target exports): links a plugin that needs nothing but glibc, as it is
# copied and linked to where nothing else of ours is, into processes with other releases of
# libstdc++ and OpenSSL. With a sanitizer it shares what the test program has.
function(linkspan_self_contained target exports)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${exports}
    -Wl,-z,nodelete -Wl,--gc-sections -Wl,--as-needed)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${exports}
    INSTALL_RPATH "")
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_link_libraries(${target} PRIVATE linkspan_internal)
    return()
  endif()
  find_library(LINKSPAN_STATIC_SSL libssl.a)
  find_library(LINKSPAN_STATIC_CRYPTO libcrypto.a)
  if(LINKSPAN_STATIC_SSL AND LINKSPAN_STATIC_CRYPTO)
    target_link_libraries(${target} PRIVATE linkspan_internal ${LINKSPAN_STATIC_SSL}
                          ${LINKSPAN_STATIC_CRYPTO})
  else()
    message(STATUS "linkspan: no static OpenSSL: ${target} needs the host's")
    target_link_libraries(${target} PRIVATE linkspan_internal)
  endif()
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,defs)
  linkspan_old_glibc(${target})
endfunction()
