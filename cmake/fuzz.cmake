# The fuzzers (clang's libFuzzer): tests/fuzz/NAME_fuzz.cpp with the seeds in tests/fuzz/corpus/NAME.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
cmake_path(GET CMAKE_BINARY_DIR FILENAME preset)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
add_custom_target(linkspan_fuzzers)
set(fuzzers)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/support.cpp)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE linkspan_internal)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(linkspan_fuzzers ${name})
  list(APPEND fuzzers $<TARGET_FILE:${name}>)
endforeach()
add_executable(make_corpus tests/fuzz/make_corpus.cpp tests/fuzz/support.cpp)
target_include_directories(make_corpus PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(make_corpus PRIVATE linkspan_internal)
set_target_properties(make_corpus PROPERTIES EXCLUDE_FROM_ALL ON)

# One entry, which runs two at a time: ctest itself runs one.
add_test(NAME ${preset}.fuzzers COMMAND ${Python3_EXECUTABLE}
         ${CMAKE_SOURCE_DIR}/scripts/run_fuzzers.py ${CMAKE_BINARY_DIR} ${fuzzers})
set_tests_properties(${preset}.fuzzers PROPERTIES TIMEOUT 1500
                     ENVIRONMENT LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1)
