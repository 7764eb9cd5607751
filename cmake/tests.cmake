find_package(GTest CONFIG REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# Test names start with the build folder's name, so that the presets' tests can be told apart.
cmake_path(GET CMAKE_BINARY_DIR FILENAME preset)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  # Debian's clang 16 looks for llvm-symbolizer-16 alone, which clang-16 does not bring.
  find_program(symbolizer llvm-symbolizer REQUIRED)
  set(sanitizer_options TSAN_OPTIONS=external_symbolizer_path=${symbolizer})
endif()
function(linkspan_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "COMMAND;ENVIRONMENT" ${ARGN})
  list(APPEND arg_ENVIRONMENT ${sanitizer_options})
  add_test(NAME ${preset}.${name} COMMAND ${arg_COMMAND})
  # What may take longest begins first, so that no core is idle at the end.
  set_tests_properties(${preset}.${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
                       ENVIRONMENT "${arg_ENVIRONMENT}")
  # What repeats in another mode what a plain `./dev test` runs already is for --all.
  if(name MATCHES "_cpu$|^conformance_(lossy|slow|small|sealed|tls)|^faults_tls|^hostile|^seed_build" AND
     NOT name STREQUAL "hosts_cpu")
    set_tests_properties(${preset}.${name} PROPERTIES LABELS all)
  endif()
endfunction()

# ---- the simulated driver: loaded by name, linked into nothing ------------------------------
# Of modules that are loaded late ThreadSanitizer (seen with clang 14) takes thread_locals that glibc
# has put beside each other on the heap for a thread's own block, and ends the process.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  set(late_tls -ftls-model=initial-exec)
endif()
linkspan_glob(fake_sources tests/support/fake_cuda)
if(fake_sources)
  add_library(fake_cuda MODULE ${fake_sources})
  target_include_directories(fake_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(fake_cuda PRIVATE linkspan_common ${CMAKE_DL_LIBS})
  target_compile_definitions(fake_cuda PRIVATE FAKE_CUDA_BUILD="${preset}")
  target_compile_options(fake_cuda PRIVATE ${late_tls})
  target_link_options(fake_cuda PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/tests/support/fake_cuda/exports.map)
endif()

# ---- simulated network cards, as today's libibverbs and as one from before IBVERBS_1.8 -----------
linkspan_glob(fake_verbs_sources tests/support/fake_verbs)
add_library(fake_verbs_objects OBJECT ${fake_verbs_sources})
target_include_directories(fake_verbs_objects PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(fake_verbs_objects PRIVATE linkspan_common)
target_compile_definitions(fake_verbs_objects PRIVATE FAKE_VERBS_BUILD="${preset}")
target_compile_options(fake_verbs_objects PRIVATE ${late_tls})
foreach(module fake_verbs fake_verbs_old)
  set(exports ${CMAKE_SOURCE_DIR}/tests/support/fake_verbs/exports)
  if(module STREQUAL "fake_verbs_old")
    string(APPEND exports _old)
  endif()
  add_library(${module} MODULE $<TARGET_OBJECTS:fake_verbs_objects>)
  set_target_properties(${module} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${exports}.map)
  target_link_libraries(${module} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(${module} PRIVATE -Wl,--version-script=${exports}.map)
endforeach()

# ---- the shim: over the simulated driver here, over the real one on a GPU machine ---------------
linkspan_glob(shim_sources tests/support/driver_shim)
add_library(driver_shim MODULE ${shim_sources})
target_include_directories(driver_shim PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(driver_shim PRIVATE ${late_tls})
target_link_libraries(driver_shim PRIVATE linkspan_common ${CMAKE_DL_LIBS})

# ---- preloaded: threads that lose their cores at random ------------------------------------------
linkspan_glob(unlucky_sources tests/support/unlucky_threads)
add_library(unlucky_threads MODULE ${unlucky_sources})
target_include_directories(unlucky_threads PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(unlucky_threads PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(unlucky_threads PROPERTIES CXX_VISIBILITY_PRESET default)

# ---- preloaded: which calls that could wait the Engine's threads make ----------------------------
linkspan_glob(calls_sources tests/support/thread_calls)
add_library(thread_calls MODULE ${calls_sources})
target_include_directories(thread_calls PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(thread_calls PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(thread_calls PROPERTIES CXX_VISIBILITY_PRESET default)

include(cmake/nccl_net_plugin.cmake)  # sets nccl_net_plugins

set(no_driver LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1)
set(simulated LINKSPAN_CUDA_LIBRARY=$<TARGET_FILE:fake_cuda>)
set(shimmed LINKSPAN_CUDA_LIBRARY=$<TARGET_FILE:driver_shim>
            LINKSPAN_SHIM_DRIVER=$<TARGET_FILE:fake_cuda>)

# ---- gtest programs ------------------------------------------------------------------------
linkspan_glob(support_sources tests/support)
list(FILTER support_sources EXCLUDE REGEX "/tests/support/(fake_cuda/|fake_verbs/|fake_runtime/|driver_shim/|nccl_net_plugin/|nvtx_recorder/|unlucky_threads/|thread_calls/|main\\.cpp$)")
if(support_sources)
  add_library(linkspan_test_support OBJECT ${support_sources}
              tools/linkspan/pair/spawned_process.cpp)
  target_include_directories(linkspan_test_support PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(linkspan_test_support PRIVATE -O1)
  target_link_libraries(linkspan_test_support PRIVATE linkspan_internal GTest::gtest
                        nlohmann_json::nlohmann_json)
  linkspan_unity(linkspan_test_support)
endif()

# linkspan_gtest(name folder [modes...] [LIBRARY target] [SHIM] [SANITIZED_PARTS n]): one program,
# one ctest entry per mode (cpu, simulated; the latter with SHIM over the shim). What the library
# exports comes from it, not from linkspan_internal. Beside a sanitizer one of n parts runs, by the
# run's seed; `./dev test --long` runs all.
function(linkspan_gtest name folder)
  cmake_parse_arguments(arg "SHIM" "LIBRARY;SANITIZED_PARTS" "" ${ARGN})
  set(parts)
  if(arg_SANITIZED_PARTS AND CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    set(parts --parts ${arg_SANITIZED_PARTS})
  endif()
  linkspan_glob(sources ${folder})
  if(NOT sources)
    return()
  endif()
  set(main ${CMAKE_SOURCE_DIR}/tests/support/main.cpp)
  if(EXISTS ${main})
    list(APPEND sources ${main})
  else()
    set(main_library GTest::gtest_main)
  endif()
  add_executable(linkspan_${name} ${sources})
  linkspan_unity(linkspan_${name})
  if(TARGET linkspan_test_support)
    target_sources(linkspan_${name} PRIVATE $<TARGET_OBJECTS:linkspan_test_support>)
  endif()
  target_include_directories(linkspan_${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(linkspan_${name} PRIVATE -O1)  # tests need to compile fast, not run fast
  target_link_libraries(linkspan_${name} PRIVATE ${arg_LIBRARY} linkspan_internal GTest::gtest
                        ${main_library} nlohmann_json::nlohmann_json)
  foreach(mode IN LISTS arg_UNPARSED_ARGUMENTS)
    set(environment ${no_driver})
    if(mode STREQUAL "simulated")
      if(NOT TARGET fake_cuda)
        continue()
      endif()
      set(environment ${simulated})
      if(arg_SHIM)
        set(environment ${shimmed})
      endif()
    endif()
    if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
      list(APPEND environment LINKSPAN_TEST_LARGE=1)
    endif()
    linkspan_test(${name}_${mode} TIMEOUT 1800 ENVIRONMENT ${environment}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode ${mode} ${parts}
              --xml ${CMAKE_BINARY_DIR}/gtest/${name}_${mode}.xml
              --run $<TARGET_FILE:linkspan_${name}>)
  endforeach()
endfunction()
# Both define the structs of a plugin's versions, which they include without a guard.
set_source_files_properties(tests/unit/nccl_net_rules_test.cpp tests/unit/nccl_net_abi_test.cpp
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
linkspan_gtest(unit tests/unit cpu simulated)
target_sources(linkspan_unit PRIVATE $<TARGET_OBJECTS:linkspan_nixl_objects>)
add_dependencies(linkspan_unit ${nccl_net_plugins} linkspan_nccl  # loaded by name
                 fake_verbs fake_verbs_old)
target_link_options(linkspan_unit PRIVATE -Wl,--wrap=pthread_mutex_lock)  # verbs_cost_test.cpp
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")  # its operator new has no other in its place
  target_link_options(linkspan_unit PRIVATE -Wl,--wrap=_Znwm,--wrap=_Znam)  # no_memory.cpp
endif()
set_source_files_properties(tests/unit/unpack_kernel_test.cpp PROPERTIES
  COMPILE_OPTIONS -Wno-unknown-pragmas)  # a kernel's #pragma unroll
linkspan_gtest(conformance tests/conformance cpu simulated SANITIZED_PARTS 3)
if(TARGET linkspan_conformance)
  target_link_options(linkspan_conformance PRIVATE  # write_cost_test.cpp
    -Wl,--wrap=pthread_mutex_lock,--wrap=_Znwm,--wrap=_ZnwmSt11align_val_t)
endif()
add_dependencies(linkspan_conformance ${nccl_net_plugins} linkspan_nccl fake_verbs)  # likewise
# The tcp transport's part of it between two hosts with a bad cable (tests/support/network.hpp).
if(preset STREQUAL "release" AND TARGET fake_cuda)
  foreach(link lossy slow small_packets lossy_with_small_windows)
    linkspan_test(conformance_${link} TIMEOUT 180
      ENVIRONMENT ${simulated} LINKSPAN_TEST_LINK=${link}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
              --xml ${CMAKE_BINARY_DIR}/gtest/conformance_${link}.xml
              --run $<TARGET_FILE:linkspan_conformance>
              --gtest_filter=Every/TransportConformance.*/tcp*)
  endforeach()
  # The same, and between Engines, while threads lose their cores at random.
  linkspan_test(conformance_unlucky TIMEOUT 180 ENVIRONMENT ${simulated}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
            --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
            --xml ${CMAKE_BINARY_DIR}/gtest/conformance_unlucky.xml
            --run env LD_PRELOAD=$<TARGET_FILE:unlucky_threads>
                  $<TARGET_FILE:linkspan_conformance>
            --gtest_filter=Every/TransportConformance.*/tcp*:*EngineWire*tcp*)
  # It was preloaded without any effect once: its functions were hidden.
  linkspan_test(unlucky_exports TIMEOUT 30
    COMMAND sh -c "${CMAKE_NM} -D --defined-only '$<TARGET_FILE:unlucky_threads>' | grep -q ' T epoll_wait$'")
  # And between Engines that have a secret, all of what goes by TCP sealed.
  linkspan_test(conformance_sealed TIMEOUT 180
    ENVIRONMENT ${simulated} "LINKSPAN_SECRET=a secret of the tests"
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
            --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
            --xml ${CMAKE_BINARY_DIR}/gtest/conformance_sealed.xml
            --run $<TARGET_FILE:linkspan_conformance>
            --gtest_filter=*EngineWire*tcp*:*Windows*tcp*)
  # The same by TLS.
  linkspan_test(conformance_tls TIMEOUT 180
    ENVIRONMENT ${simulated} "LINKSPAN_SECRET=a secret of the tests" LINKSPAN_SECURITY=encrypted
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
            --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
            --xml ${CMAKE_BINARY_DIR}/gtest/conformance_tls.xml
            --run $<TARGET_FILE:linkspan_conformance>
            --gtest_filter=*EngineWire*tcp*:*Windows*tcp*)
endif()
linkspan_gtest(faults tests/faults cpu simulated SHIM SANITIZED_PARTS 2)
if(TARGET linkspan_faults)
  target_sources(linkspan_faults PRIVATE ${CMAKE_SOURCE_DIR}/tests/conformance/engine_fixture.cpp)
  add_dependencies(linkspan_faults ${nccl_net_plugins} fake_verbs)  # likewise
  if(preset STREQUAL "release" AND TARGET fake_cuda)  # peers that are killed in the midst of TLS
    linkspan_test(faults_tls TIMEOUT 180
      ENVIRONMENT ${simulated} "LINKSPAN_SECRET=a secret of the tests" LINKSPAN_SECURITY=encrypted
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
              --xml ${CMAKE_BINARY_DIR}/gtest/faults_tls.xml
              --run $<TARGET_FILE:linkspan_faults> --gtest_filter=*WireKills*tcp*:*WirePeers*tcp*)
  endif()
endif()
if(NOT preset STREQUAL "tsan")  # what it costs is more than what an attack leaves of a core
  linkspan_gtest(hostile tests/hostile simulated)
  target_sources(linkspan_hostile PRIVATE ${CMAKE_SOURCE_DIR}/tests/conformance/engine_fixture.cpp
    ${CMAKE_SOURCE_DIR}/tests/faults/usage.cpp)
  add_dependencies(linkspan_hostile unlucky_threads fake_verbs)  # loaded by name
endif()
if(preset STREQUAL "release")
  linkspan_gtest(hosts tests/hosts cpu)
  target_sources(linkspan_hosts PRIVATE ${CMAKE_SOURCE_DIR}/tests/conformance/engine_fixture.cpp)
endif()
# The RDMA transport by Linux's own RDMA in a virtual machine, whose clock goes on while the machine
# waits for a core.
if(preset STREQUAL "release" AND TARGET linkspan_tool)
  linkspan_test(rdma_vm TIMEOUT 900
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/rdma_vm/run.py
            --build ${CMAKE_BINARY_DIR} --limit 300)
  set_tests_properties(${preset}.rdma_vm PROPERTIES RUN_SERIAL TRUE SKIP_RETURN_CODE 77 LABELS all)
endif()
# What threads that serve several peers call, against the table of docs/threading.md.
if(preset STREQUAL "release" AND TARGET fake_cuda)
  set(calls_conformance
    Every/EngineRoutes* *RemotePeers* Every/TwoSidedDeath* TwoSided.* Notifications* PublishedSets*
    Every/EngineMade* Every/EngineWireAlike*tcp* Every/EngineWireAlike*v7_device0
    Every/EngineWireAlike*v12_device0 EngineInvalidate* EngineWishes* EngineClose* By/Windows*tcp*)
  list(JOIN calls_conformance ":" calls_conformance)
  linkspan_test(calls_of_threads TIMEOUT 180 ENVIRONMENT ${simulated}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_calls.py
            --table ${CMAKE_SOURCE_DIR}/docs/threading.md --preload $<TARGET_FILE:thread_calls>
            --run $<TARGET_FILE:linkspan_conformance> ${calls_conformance}
            --run $<TARGET_FILE:linkspan_faults>
                  Flood*:Orphan*:EarlyFree*:By/GuardedMemory*:Versions*)
endif()
linkspan_gtest(driver_facts tests/driver_facts simulated)
linkspan_gtest(nvlink_transfer vcache/native/tests cpu simulated LIBRARY nvlink_transfer)
target_sources(linkspan_nvlink_transfer PRIVATE tests/faults/usage.cpp tests/unit/no_memory.cpp)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")  # as linkspan_unit; the library's calls do not fail
  target_link_options(linkspan_nvlink_transfer PRIVATE -Wl,--wrap=_Znwm,--wrap=_Znam)
endif()

if(TARGET fake_cuda)
  linkspan_test(driver_calls_simulated TIMEOUT 120
    ENVIRONMENT ${shimmed}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
            --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode simulated
            --xml ${CMAKE_BINARY_DIR}/gtest/driver_calls_simulated.xml
            --run $<TARGET_FILE:linkspan_conformance> --gtest_filter=*DriverCallsOf*)
endif()

if(TARGET linkspan_tool)
  set(cli_test ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/cli_test.py
      $<TARGET_FILE:linkspan_tool>)
  linkspan_test(cli_cpu TIMEOUT 300 COMMAND ${cli_test} cpu ENVIRONMENT ${no_driver})
  linkspan_test(demo_cpu TIMEOUT 120 COMMAND linkspan_tool demo --quick ENVIRONMENT ${no_driver})
  if(TARGET fake_cuda)
    linkspan_test(cli_simulated TIMEOUT 300 COMMAND ${cli_test} simulated ENVIRONMENT ${simulated})
    linkspan_test(demo_simulated TIMEOUT 300 COMMAND linkspan_tool demo --quick
                  ENVIRONMENT ${simulated})
  endif()
  if(LINKSPAN_NVTX_INCLUDE)
    add_library(nvtx_recorder MODULE tests/support/nvtx_recorder/nvtx_recorder.cpp)
    target_include_directories(nvtx_recorder SYSTEM PRIVATE ${LINKSPAN_NVTX_INCLUDE})
    target_link_libraries(nvtx_recorder PRIVATE ${CMAKE_DL_LIBS})
    linkspan_test(nvtx TIMEOUT 60 ENVIRONMENT ${no_driver}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/nvtx_test.py
              $<TARGET_FILE:linkspan_tool> $<TARGET_FILE:nvtx_recorder>)
  endif()
endif()

# Files go through SHA-256 and fsync, which takes minutes beside a sanitizer.
if(TARGET linkspan_tool AND preset STREQUAL "release")
  set(hosts_cli_test ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/hosts_cli_test.py
      $<TARGET_FILE:linkspan_tool>)
  linkspan_test(hosts_cli_cpu TIMEOUT 600 COMMAND ${hosts_cli_test} cpu ENVIRONMENT ${no_driver})
  if(TARGET fake_cuda)
    linkspan_test(hosts_cli_simulated TIMEOUT 600 COMMAND ${hosts_cli_test} simulated
                  ENVIRONMENT ${simulated})
  endif()
endif()

# ---- the store beside torch's, from traces and, where there is one, with a torch ------------------
if(TARGET linkspan_tool)
  linkspan_test(store_traces TIMEOUT 60 ENVIRONMENT ${no_driver}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/store_trace_test.py
            $<TARGET_FILE:linkspan_tool>)
  # Debian's python3-torch is of Debian's Python.
  find_program(LINKSPAN_TORCH_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
  if(LINKSPAN_TORCH_PYTHON AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    linkspan_test(store_torch TIMEOUT 300 ENVIRONMENT ${no_driver}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode cpu
              --xml ${CMAKE_BINARY_DIR}/gtest/store_torch.xml
              --run ${LINKSPAN_TORCH_PYTHON} ${CMAKE_SOURCE_DIR}/tests/store_torch_test.py
              --tool $<TARGET_FILE:linkspan_tool>)
  endif()
endif()

if(TARGET fake_cuda AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  linkspan_test(bench_nvlink_transfer_simulated TIMEOUT 60 ENVIRONMENT ${simulated}
    COMMAND bench_nvlink_transfer --quick
            --json ${CMAKE_BINARY_DIR}/bench_nvlink_transfer.json)
  if(EXISTS ${LINKSPAN_WHEELS}/nvidia/cuda_nvrtc)  # it runs kernels
    linkspan_test(bench_tcpx_unpack_simulated TIMEOUT 60 ENVIRONMENT ${simulated}
      COMMAND bench_tcpx_unpack --quick --json ${CMAKE_BINARY_DIR}/bench_tcpx_unpack.json)
  endif()
  linkspan_test(bench_nccl_net_transfer_simulated TIMEOUT 60 ENVIRONMENT ${simulated}
    COMMAND bench_nccl_net_transfer --quick --plugins ${CMAKE_BINARY_DIR}
            --json ${CMAKE_BINARY_DIR}/bench_nccl_net_transfer.json)
  linkspan_test(bench_nccl_exchange TIMEOUT 60 ENVIRONMENT NCCL_SOCKET_IFNAME=lo
    COMMAND bench_nccl_exchange --quick --plugin $<TARGET_FILE:linkspan_nccl>)
  linkspan_test(bench_tcp_transfer_simulated TIMEOUT 60 ENVIRONMENT ${simulated}
    COMMAND bench_tcp_transfer --quick --streams 2 --json ${CMAKE_BINARY_DIR}/bench_tcp_transfer.json)
endif()

include(cmake/tcpx.cmake)

# ---- simple_write: over the simulated driver with its kernels compiled for the host ---------------
set_source_files_properties(examples/device/2proc/kernels.cu PROPERTIES
  LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
foreach(program simple_write unified)
  add_executable(${program}_simulated
    examples/device/2proc/${program}.cpp examples/device/2proc/kernels.cu
    tests/support/fake_runtime/cuda_runtime.cpp)
  target_include_directories(${program}_simulated PRIVATE ${CMAKE_SOURCE_DIR}
    tests/support/fake_runtime)
  target_link_libraries(${program}_simulated PRIVATE linkspan_internal)
endforeach()
set(simple_write_test ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/simple_write_test.py)
if(TARGET fake_cuda)
  linkspan_test(simple_write_simulated TIMEOUT 300 ENVIRONMENT ${simulated}
    COMMAND ${simple_write_test} $<TARGET_FILE:simple_write_simulated> simulated)
  linkspan_test(unified_simulated TIMEOUT 60 COMMAND unified_simulated 70001
                ENVIRONMENT ${simulated})
  linkspan_test(unified_one_gpu_simulated TIMEOUT 60 COMMAND unified_simulated 70001 0 0
                ENVIRONMENT ${simulated})
endif()
if(EXISTS ${LINKSPAN_WHEELS}/nvidia/cuda_nvrtc AND preset STREQUAL "release")
  linkspan_test(kernel_guide TIMEOUT 120 COMMAND ${Python3_EXECUTABLE}
                ${CMAKE_SOURCE_DIR}/tests/device/guide_test.py ${LINKSPAN_WHEELS})
endif()
if(TARGET simple_write)
  linkspan_test(simple_write_cpu TIMEOUT 60 ENVIRONMENT CUDA_VISIBLE_DEVICES=
    COMMAND ${simple_write_test} $<TARGET_FILE:simple_write> cpu)
endif()

# ---- the Python engine over libnvlink_transfer ------------------------------------------------
if(TARGET nvlink_transfer AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # Python is not built so
  foreach(test nvlink_engine nvlink_engine_async)
    set(command ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/vcache/native/tests/${test}_test.py
        $<TARGET_FILE:nvlink_transfer>)
    linkspan_test(${test}_cpu TIMEOUT 120 COMMAND ${command} cpu ENVIRONMENT ${no_driver})
    if(TARGET fake_cuda)
      linkspan_test(${test}_simulated TIMEOUT 300 COMMAND ${command} simulated
                    ENVIRONMENT ${simulated})
    endif()
  endforeach()
  linkspan_test(nvlink_engine_search TIMEOUT 120 ENVIRONMENT ${no_driver}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/vcache/native/tests/nvlink_engine_search_test.py
            $<TARGET_FILE:nvlink_transfer>)
  linkspan_test(nvlink_engine_memory TIMEOUT 120
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/vcache/native/tests/nvlink_engine_memory_test.py)
endif()

# ---- the Python package; beside AddressSanitizer, whose runtime has to come first, too ---------
if(TARGET _core)
  set(python_environment PYTHONPATH=${CMAKE_BINARY_DIR}/python PYTHONDONTWRITEBYTECODE=1)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.asan-x86_64.so
                    OUTPUT_VARIABLE asan_runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND python_environment LD_PRELOAD=${asan_runtime} PYTHONMALLOC=malloc
                ASAN_OPTIONS=detect_leaks=0)  # the interpreter keeps what it has
  endif()
  set(python_tests ${CMAKE_SOURCE_DIR}/tests/python ${CMAKE_BINARY_DIR}/python/linkspan/tests
                   ${CMAKE_SOURCE_DIR}/integrations/mooncake/tests)
  set(modes cpu simulated)
  if(asan_runtime)  # what is in this process: examples and others' doors start many
    set(modes simulated)
    set(python_tests)
    foreach(name IN ITEMS memory transfers many_regions lifetime processes documents rendezvous)
      list(APPEND python_tests ${CMAKE_SOURCE_DIR}/tests/python/${name}_test.py)
    endforeach()
  endif()
  foreach(mode IN LISTS modes)
    set(driver ${no_driver})
    if(mode STREQUAL "simulated")
      set(driver ${simulated})
    endif()
    linkspan_test(python_${mode} TIMEOUT 600 ENVIRONMENT ${python_environment} ${driver}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode ${mode}
              --xml ${CMAKE_BINARY_DIR}/gtest/python_${mode}.xml
              --pytest --run ${LINKSPAN_PYTHON} -X faulthandler -m pytest -q -p no:cacheprovider
              ${python_tests})
  endforeach()
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # beside what ./dev setup fetched
    linkspan_test(make_release TIMEOUT 60
      COMMAND ${LINKSPAN_PYTHON} ${CMAKE_SOURCE_DIR}/tests/release_test.py)
    set(integration_tests)
    foreach(name IN ITEMS nccl nixl ray sglang vllm)
      list(APPEND integration_tests ${CMAKE_SOURCE_DIR}/integrations/${name}/tests)
    endforeach()
    linkspan_test(integrations TIMEOUT 600 ENVIRONMENT ${python_environment} ${no_driver}
      LINKSPAN_NCCL_PLUGIN=$<TARGET_FILE:linkspan_nccl>
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode cpu
              --xml ${CMAKE_BINARY_DIR}/gtest/integrations.xml
              --pytest --run ${LINKSPAN_PYTHON} -X faulthandler -m pytest -q -p no:cacheprovider
              ${integration_tests})
    linkspan_test(prometheus TIMEOUT 120 ENVIRONMENT ${python_environment} ${no_driver}
      LINKSPAN_TOOL=$<TARGET_FILE:linkspan_tool>
      LINKSPAN_PROMETHEUS=${LINKSPAN_WHEELS}/../prometheus
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
              --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode cpu
              --xml ${CMAKE_BINARY_DIR}/gtest/prometheus.xml
              --pytest --run ${LINKSPAN_PYTHON} -X faulthandler -m pytest -q -p no:cacheprovider
              ${CMAKE_SOURCE_DIR}/tests/prometheus_test.py)
  endif()
endif()

# ---- our declarations of the driver against NVIDIA's own, of two releases --------------------
set(abi_check ${CMAKE_SOURCE_DIR}/tests/abi/driver_abi_check.cpp)
find_path(LINKSPAN_CUDA_INCLUDE_12 cuda.h NO_DEFAULT_PATH
          PATHS ${LINKSPAN_WHEELS}/nvidia/cuda_runtime/include)
find_path(LINKSPAN_CUDA_INCLUDE_13 cuda.h NO_DEFAULT_PATH
          PATHS ${LINKSPAN_WHEELS}/nvidia/cu13/include /usr/local/cuda/include)
foreach(major 12 13)
  if(EXISTS ${abi_check} AND LINKSPAN_CUDA_INCLUDE_${major})
    add_library(abi_check_${major} OBJECT ${abi_check})
    target_include_directories(abi_check_${major} SYSTEM PRIVATE ${LINKSPAN_CUDA_INCLUDE_${major}})
    target_include_directories(abi_check_${major} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(abi_check_${major} PRIVATE linkspan_common)
  elseif(EXISTS ${abi_check})
    message(STATUS "linkspan: driver declarations not checked: no cuda.h ${major}")
  endif()
endforeach()

# ---- our declarations of libibverbs against its own -------------------------------------------
find_path(LINKSPAN_VERBS_INCLUDE infiniband/verbs.h)
if(LINKSPAN_VERBS_INCLUDE)
  add_library(abi_check_verbs OBJECT ${CMAKE_SOURCE_DIR}/tests/abi/verbs_abi_check.cpp
              ${CMAKE_SOURCE_DIR}/tests/abi/verbs_numbers_check.cpp)
  target_include_directories(abi_check_verbs SYSTEM PRIVATE ${LINKSPAN_VERBS_INCLUDE})
  target_include_directories(abi_check_verbs PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(abi_check_verbs PRIVATE linkspan_common)
else()
  message(STATUS "linkspan: verbs declarations not checked: no infiniband/verbs.h")
endif()

# ---- what is C, by a C compiler ---------------------------------------------------------------
enable_language(C)
set(c_abi ${CMAKE_SOURCE_DIR}/tests/abi/linkspan_c99.c
          ${CMAKE_SOURCE_DIR}/vcache/native/tests/nvlink_transfer_abi.c)
set(c_flags -std=c99 -pedantic -Wall -Wextra -Werror)
add_library(c_abi OBJECT ${c_abi})
target_include_directories(c_abi PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}
                           ${CMAKE_SOURCE_DIR}/vcache/native/include)
target_compile_options(c_abi PRIVATE ${c_flags})

# ---- once, not per sanitizer ------------------------------------------------------------------
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  add_executable(example_two_processes examples/c/two_processes.c)
  target_link_libraries(example_two_processes PRIVATE linkspan)
  target_compile_options(example_two_processes PRIVATE ${c_flags})
  linkspan_test(example_c TIMEOUT 60 COMMAND example_two_processes ENVIRONMENT ${no_driver})
  linkspan_test(scripts TIMEOUT 120
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/scripts_test.py)
  linkspan_test(peers_table TIMEOUT 60
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/peers_table_test.py)
  # What cmake/old_glibc.cmake puts into what ships, in a program of its own.
  add_executable(linkspan_old_glibc tests/old_glibc/replacements_test.cpp)
  target_include_directories(linkspan_old_glibc PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(linkspan_old_glibc PRIVATE GTest::gtest GTest::gtest_main)
  linkspan_link_for_glibc(linkspan_old_glibc 2.28)
  linkspan_test(old_glibc TIMEOUT 60
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_skips.py
            --allowed ${CMAKE_SOURCE_DIR}/tests/allowed_skips.txt --mode cpu
            --xml ${CMAKE_BINARY_DIR}/gtest/old_glibc_cpu.xml --run $<TARGET_FILE:linkspan_old_glibc>)
  linkspan_test(old_glibc_symbols TIMEOUT 30
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_glibc.py 2.28
            $<TARGET_FILE:linkspan_old_glibc>)
  linkspan_test(sleep_models TIMEOUT 600
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/models/run.py)
  linkspan_test(exports TIMEOUT 30
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_exports.py
            $<TARGET_FILE:linkspan> ${CMAKE_SOURCE_DIR}/include/linkspan/linkspan.h)
  linkspan_test(nvlink_transfer_exports TIMEOUT 30
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_exports.py
            $<TARGET_FILE:nvlink_transfer> ${CMAKE_SOURCE_DIR}/vcache/native/include/linkspan/nvlink_transfer.h)
  linkspan_test(abi TIMEOUT 60
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/abi.py check)
  add_library(unload_plugin MODULE ${CMAKE_SOURCE_DIR}/tests/unload/plugin.cpp)
  target_link_libraries(unload_plugin PRIVATE linkspan)
  add_executable(linkspan_unload ${CMAKE_SOURCE_DIR}/tests/unload/main.cpp)
  target_include_directories(linkspan_unload PRIVATE ${CMAKE_SOURCE_DIR}/vcache/native/include)
  target_link_libraries(linkspan_unload PRIVATE ${CMAKE_DL_LIBS})
  set(unload $<TARGET_FILE:linkspan_unload> $<TARGET_FILE:unload_plugin>
      $<TARGET_FILE:nvlink_transfer>)
  linkspan_test(unload_cpu TIMEOUT 60 COMMAND ${unload} ENVIRONMENT ${no_driver})
  if(TARGET fake_cuda)
    linkspan_test(unload_simulated TIMEOUT 60 COMMAND ${unload} ENVIRONMENT ${simulated})
  endif()
  find_program(LINKSPAN_CLANG clang)
  if(LINKSPAN_CLANG)
    linkspan_test(c_abi_clang TIMEOUT 30
      COMMAND ${LINKSPAN_CLANG} -fsyntax-only ${c_flags} -I${CMAKE_SOURCE_DIR}/include
              -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/vcache/native/include ${c_abi})
  endif()
  # The device headers by both compilers. NVRTC comes with the wheels that build the kernels.
  foreach(test compile ptx)
    set(device_test ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tests/device/${test}_test.py)
    linkspan_test(device_${test}_nvrtc TIMEOUT 300 COMMAND ${device_test} nvrtc ${LINKSPAN_WHEELS})
    if(LINKSPAN_NVCC)
      linkspan_test(device_${test}_nvcc TIMEOUT 300 COMMAND ${device_test} nvcc ${LINKSPAN_NVCC})
    else()
      message(STATUS "linkspan: no test device_${test}_nvcc: no nvcc was found")
    endif()
  endforeach()
  linkspan_test(consumer TIMEOUT 300 ENVIRONMENT ${no_driver}
    COMMAND ${CMAKE_SOURCE_DIR}/tests/consumer/run.sh ${CMAKE_BINARY_DIR})
  # Both build the helper as its users do, from nothing.
  set(seed_path $ENV{PATH})
  set(python_there)
  if(TARGET _core)
    cmake_path(GET LINKSPAN_PYTHON PARENT_PATH python_folder)
    string(PREPEND seed_path ${python_folder}:)  # has pytest
    set(python_there --python ${CMAKE_BINARY_DIR}/python)
  endif()
  set(seed_commands ${CMAKE_COMMAND} -E env "CMAKE_CXX_COMPILER_LAUNCHER=${LINKSPAN_CCACHE}"
      PATH=${seed_path} ${CMAKE_SOURCE_DIR}/tests/seed_commands.sh)
  set(simple_write_there)
  if(TARGET simple_write)
    set(simple_write_there --simple-write $<TARGET_FILE:simple_write>)
  endif()
  set(tcpx_there --tcpx ${CMAKE_BINARY_DIR})
  linkspan_test(seed_commands_cpu TIMEOUT 400
    COMMAND ${seed_commands} cpu ${simple_write_there} ${tcpx_there} ${python_there})
  # What is tried are the commands: without optimisation they take half the time.
  linkspan_test(seed_build TIMEOUT 1800 ENVIRONMENT CMAKE_BUILD_TYPE=Debug
    COMMAND ${seed_commands} cpu --build --only 004_build)
  if(TARGET fake_cuda)
    linkspan_test(seed_commands_simulated TIMEOUT 600 ENVIRONMENT ${simulated}
      COMMAND ${seed_commands} simulated --shim $<TARGET_FILE:driver_shim>
              --simple-write $<TARGET_FILE:simple_write_simulated> ${tcpx_there}
              ${python_there})
    # Both take the port that the documents name.
    set_tests_properties(${preset}.seed_commands_cpu ${preset}.seed_commands_simulated
                         PROPERTIES RESOURCE_LOCK tcpx_port)
  endif()
endif()
