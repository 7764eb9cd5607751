include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/linkspan)
install(DIRECTORY include/ vcache/native/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS linkspan linkspan_store linkspan_device nvlink_transfer EXPORT linkspanTargets
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT linkspanTargets NAMESPACE linkspan:: DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/linkspanConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
# Nothing to look for: what the library uses is hidden inside it.
file(WRITE ${CMAKE_BINARY_DIR}/linkspanConfig.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/linkspanTargets.cmake)\n")
# Relative to the .pc file: `cmake --install --prefix` may choose another place.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(pc_library linkspan linkspan_store)
  string(REPLACE _ - pc_name ${pc_library})
  configure_file(cmake/linkspan.pc.in ${pc_name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/linkspanConfig.cmake
              ${CMAKE_BINARY_DIR}/linkspanConfigVersion.cmake DESTINATION ${config_dir})
