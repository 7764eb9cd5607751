# Programs with kernels of their own, by nvcc and the CUDA runtime: examples/device, bench/device. The library needs
# neither; where no nvcc is found, not even in what ./dev setup fetches, they are left out.
find_program(LINKSPAN_NVCC nvcc PATHS /usr/local/cuda/bin ${LINKSPAN_WHEELS}/nvidia/cu13/bin)
if(LINKSPAN_NVCC)
  cmake_path(GET LINKSPAN_NVCC PARENT_PATH nvcc_folder)
  cmake_path(GET nvcc_folder PARENT_PATH cuda_root)
  find_library(LINKSPAN_CUDART cudart_static
    HINTS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib)
  find_path(LINKSPAN_CUDA_INCLUDE cuda_runtime.h
    HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
endif()

# linkspan_device_program(name folder [sources...] KERNELS file): build/FOLDER/NAME.
function(linkspan_device_program name folder)
  cmake_parse_arguments(arg "" "KERNELS" "" ${ARGN})
  set(object ${CMAKE_BINARY_DIR}/${folder}/${name}_kernels.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/${folder}
    COMMAND ${LINKSPAN_NVCC} -std=c++20 -O3 -t 0 -Xcompiler=-fPIC
            -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90,code=sm_90
            -gencode=arch=compute_100,code=sm_100 -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}
            -MD -MF ${object}.d -c -o ${object} ${CMAKE_SOURCE_DIR}/${folder}/${arg_KERNELS}
    DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/${arg_KERNELS} DEPFILE ${object}.d
    COMMENT "nvcc ${folder}/${arg_KERNELS}" VERBATIM)
  list(TRANSFORM arg_UNPARSED_ARGUMENTS PREPEND ${CMAKE_SOURCE_DIR}/${folder}/)
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS} ${object})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${folder}
    INSTALL_RPATH "$ORIGIN;$ORIGIN/../../.." LINKER_LANGUAGE CXX)
  target_include_directories(${name} SYSTEM PRIVATE ${LINKSPAN_CUDA_INCLUDE})
  target_link_libraries(${name} PRIVATE linkspan Threads::Threads ${LINKSPAN_CUDART} rt
                        ${CMAKE_DL_LIBS})
endfunction()

if(LINKSPAN_NVCC AND LINKSPAN_CUDART AND LINKSPAN_CUDA_INCLUDE)
  linkspan_device_program(simple_write examples/device/2proc simple_write.cpp KERNELS kernels.cu)
  linkspan_device_program(simple_write_unified examples/device/2proc unified.cpp KERNELS kernels.cu)
  target_link_libraries(simple_write PRIVATE linkspan_store)
  linkspan_device_program(bench_device bench/device KERNELS bench_device.cu)
  if(LINKSPAN_TESTS)
    linkspan_device_program(device_patterns tests/device KERNELS patterns_gpu.cu)
  endif()
else()
  message(STATUS "linkspan: examples/device and bench/device are left out: no nvcc with a CUDA runtime was found")
endif()
