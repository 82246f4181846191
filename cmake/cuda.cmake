# The CUDA module: libsluice-cuda, loaded at run time (src/backend/open.c). It links the runtime statically and carries
# the few base files it uses, so that it needs nothing but the driver.
#
# nvcc is called by rules of our own: the flags of the C parts are not for it, and a machine without it must not notice.
set(SLUICE_CUDA_BASE_SOURCES
  src/base/alloc.c src/base/arena.c src/base/clock.c src/base/cpu.c src/base/error.c src/base/log.c src/base/pool.c src/base/team.c
  src/quant/activation.c src/quant/codebook.c src/quant/codebook_encode.c src/quant/floats.c src/quant/kquants.c src/quant/legacy.c
  src/quant/nonlinear.c src/quant/qtype.c src/program/program.c src/program/step.c)
if(NOT SLUICE_CUDA)
  return()
endif()
string(TOUPPER "${SLUICE_CUDA}" cuda_wanted)
find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
if(NOT SLUICE_NVCC)
  if(cuda_wanted STREQUAL "AUTO")
    message(STATUS "CUDA module: not built, nvcc not found")
    return()
  endif()
  message(FATAL_ERROR "SLUICE_CUDA=${SLUICE_CUDA} needs nvcc, which is neither on the path nor in /usr/local/cuda/bin; "
    "set SLUICE_NVCC to it, or SLUICE_CUDA=OFF")
endif()
get_filename_component(cuda_bin ${SLUICE_NVCC} REALPATH)
get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
find_path(SLUICE_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_bin}/../include ${cuda_bin}/../targets/x86_64-linux/include)
find_library(SLUICE_CUDART cudart_static HINTS ${cuda_bin}/../lib64 ${cuda_bin}/../targets/x86_64-linux/lib)
if(NOT SLUICE_CUDA_INCLUDE OR NOT SLUICE_CUDART)
  if(cuda_wanted STREQUAL "AUTO")
    message(STATUS "CUDA module: not built, the runtime's headers or libcudart_static.a not found beside ${SLUICE_NVCC}")
    return()
  endif()
  message(FATAL_ERROR "SLUICE_CUDA=${SLUICE_CUDA}: cuda_runtime_api.h or libcudart_static.a not found beside ${SLUICE_NVCC}")
endif()
message(STATUS "CUDA module: ${SLUICE_NVCC}")

# Hopper's own code, code for 8.0 and what follows it, and PTX for what is not built yet.
set(SLUICE_CUDA_TARGETS
  "-gencode;arch=compute_90a,code=sm_90a;-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_80,code=compute_80"
  CACHE STRING "nvcc's -gencode options")
set(SLUICE_CUDA_FLAGS "" CACHE STRING "more options for nvcc, behind ours")
mark_as_advanced(SLUICE_CUDA_TARGETS SLUICE_CUDA_FLAGS)
# No contraction: kernels of one numeric class promise the same bits (src/backend/cuda/cuda.h).
set(cuda_flags -std=c++17 -O3 -fmad=false -I${CMAKE_SOURCE_DIR}/src ${SLUICE_CUDA_TARGETS}
  -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Werror,-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
  ${SLUICE_CUDA_FLAGS})

# Their names are all different, whatever folder they are in: objects are called by them.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/backend/cuda/*.cu)
set(cuda_objects "")
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${SLUICE_NVCC} ${cuda_flags} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()

# Eight-bit products alone, for their own test.
set(narrow_objects ${cuda_objects})
list(FILTER narrow_objects INCLUDE REGEX "/(narrow|narrow_e4m3|narrow_e4m3_blocks|narrow_s8|tensor_map)\\.o$")
add_library(sluice_cuda_narrow STATIC EXCLUDE_FROM_ALL ${narrow_objects})
set_target_properties(sluice_cuda_narrow PROPERTIES LINKER_LANGUAGE C)
set_source_files_properties(${narrow_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
# And what ranks exchange.
set(exchange_objects ${cuda_objects})
list(FILTER exchange_objects INCLUDE REGEX "/(exchange|reduce_norm|row_ops|row_runs)\\.o$")
add_library(sluice_cuda_exchange STATIC EXCLUDE_FROM_ALL ${exchange_objects})
set_target_properties(sluice_cuda_exchange PROPERTIES LINKER_LANGUAGE C)
set_source_files_properties(${exchange_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)

# The same module for compute-sanitizer's racecheck, on demand: kernels with rings in shared memory so built that it can
# follow them (SL_ARRIVING_LANES in device.cuh, docs/gpu-test.md). tools/gpu-test finds it in racecheck/.
set(racecheck_objects ${cuda_objects})
file(GLOB_RECURSE ring_sources CONFIGURE_DEPENDS src/backend/cuda/linear/*.cu src/backend/cuda/attention/*decode*.cu
  src/backend/cuda/attention/*wgmma*.cu src/backend/cuda/attention/latent/direct_expand.cu)
list(FILTER ring_sources EXCLUDE REGEX "/(plain_linear|i8_tile_[a-z0-9]+|bf16_scratch)\\.cu$")
foreach(source ${ring_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/racecheck/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${SLUICE_NVCC} ${cuda_flags} -DSL_CUDA_RACECHECK -lineinfo -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "nvcc ${name}.cu for racecheck" VERBATIM)
  list(REMOVE_ITEM racecheck_objects ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  list(APPEND racecheck_objects ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda ${CMAKE_BINARY_DIR}/racecheck)

file(GLOB_RECURSE cuda_host_sources CONFIGURE_DEPENDS src/backend/cuda/*.c)
add_library(sluice_cuda_racecheck MODULE EXCLUDE_FROM_ALL ${cuda_host_sources} ${racecheck_objects}
  ${SLUICE_CUDA_BASE_SOURCES})
add_library(sluice_cuda MODULE ${cuda_host_sources} ${cuda_objects} ${SLUICE_CUDA_BASE_SOURCES})
set_source_files_properties(${cuda_objects} ${racecheck_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
foreach(module sluice_cuda sluice_cuda_racecheck)
  target_include_directories(${module} PRIVATE src)
  target_include_directories(${module} SYSTEM PRIVATE ${SLUICE_CUDA_INCLUDE})
  target_link_libraries(${module} PRIVATE ${SLUICE_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt m)
  target_link_options(${module} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  set_target_properties(${module} PROPERTIES OUTPUT_NAME sluice-cuda PREFIX lib)
endforeach()
set_target_properties(sluice_cuda_racecheck PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/racecheck)
install(TARGETS sluice_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
