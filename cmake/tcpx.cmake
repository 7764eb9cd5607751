# The programs of p2p/tcpx, which its Makefile builds and links into p2p/tcpx/tests.
linkspan_glob(tcpx_sources p2p/tcpx)
list(FILTER tcpx_sources EXCLUDE REGEX "/p2p/tcpx/tests/")
set(tcpx_flow tools/linkspan/tcpx/tcpx_bootstrap.cpp tools/linkspan/tcpx/tcpx_memory.cpp
              tools/linkspan/tcpx/tcpx_run.cpp)
foreach(program tcpx_transfer connection)
  add_executable(test_${program} p2p/tcpx/tests/test_${program}.cpp ${tcpx_sources} ${tcpx_flow})
  target_include_directories(test_${program} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(test_${program} PRIVATE linkspan_internal)
endforeach()
# The units' tests as programs of their own; skips are the units' to check.
if(TARGET linkspan_unit)
  foreach(program rx_cmsg_parser rx_descriptor)
    add_executable(test_${program} tests/unit/tcpx_${program}_test.cpp)
    target_include_directories(test_${program} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(test_${program} PRIVATE linkspan_internal GTest::gtest GTest::gtest_main)
  endforeach()
endif()

set(tcpx_test ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/tcpx_test.py ${CMAKE_BINARY_DIR})
linkspan_test(tcpx_cpu TIMEOUT 120 COMMAND ${tcpx_test} cpu ENVIRONMENT ${no_driver})
if(TARGET fake_cuda)
  linkspan_test(tcpx_simulated TIMEOUT 200 COMMAND ${tcpx_test} simulated ENVIRONMENT ${simulated})
endif()
