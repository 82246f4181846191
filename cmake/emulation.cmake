# The CUDA module for machines without a GPU: its sources translated to C++, on an emulated GPU
# (tests/emulation/README.md). A module of the same name in a folder of its own, with the programs that test it beside
# it, as a program finds the module beside itself.
if(NOT SLUICE_EMULATION)
  return()
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "SLUICE_EMULATION: the emulated GPU runs on x86-64 and Linux only")
endif()
if(SLUICE_SANITIZE)
  message(FATAL_ERROR "SLUICE_EMULATION: a sanitizer does not know the emulated threads' stacks; set one of the two")
endif()
find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
if(SLUICE_NVCC)
  get_filename_component(emulation_toolkit ${SLUICE_NVCC} REALPATH)
  get_filename_component(emulation_toolkit ${emulation_toolkit} DIRECTORY)
endif()
find_path(SLUICE_CUDA_INCLUDE cuda_runtime_api.h HINTS ${emulation_toolkit}/../include
  ${emulation_toolkit}/../targets/x86_64-linux/include /usr/local/cuda/include)
if(NOT SLUICE_CUDA_INCLUDE)
  message(STATUS "emulated GPU: not built, the headers of the CUDA toolkit (cuda_runtime_api.h) were not found; set "
    "SLUICE_CUDA_INCLUDE to their folder")
  return()
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
enable_language(CXX)
include(CheckCXXSourceRuns)
check_cxx_source_runs("int main(void) { return __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") ? 0 : 1; }"
  SLUICE_CPU_HAS_FMA)
message(STATUS "emulated GPU: headers of the CUDA toolkit in ${SLUICE_CUDA_INCLUDE}")
set(emulation_folder ${CMAKE_SOURCE_DIR}/tests/emulation)
set(emulated ${CMAKE_BINARY_DIR}/emulated)

# ---- translation --------------------------------------------------------------------------------------------------
file(GLOB_RECURSE device_files RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS src/backend/cuda/*.cu src/backend/cuda/*.cuh)
set(translated_files "")
set(translated_sources "")
foreach(file ${device_files})
  get_filename_component(folder ${file} DIRECTORY)
  file(MAKE_DIRECTORY ${emulated}/${folder})
  set(translated ${emulated}/${file})
  if(file MATCHES "\\.cu$")
    string(APPEND translated .cc)
    list(APPEND translated_sources ${translated})
  endif()
  add_custom_command(OUTPUT ${translated}
    COMMAND Python3::Interpreter ${emulation_folder}/translate.py ${CMAKE_SOURCE_DIR}/${file} ${translated}
    DEPENDS ${CMAKE_SOURCE_DIR}/${file} ${emulation_folder}/translate.py COMMENT "" VERBATIM)
  list(APPEND translated_files ${translated})
endforeach()
add_custom_target(emulation_translated DEPENDS ${translated_files})

# ---- the module ---------------------------------------------------------------------------------------------------
set(emulation_flags -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden)
if(SLUICE_CPU_HAS_FMA)
  list(APPEND emulation_flags -mavx2 -mfma -mf16c)
endif()
# nvcc's build is where the kernels' warnings show; like nvcc, nothing is concluded from types of pointers, bounds of
# arrays and signs of sums. Line tables, for reports.
set(narrow_sources ${translated_sources}) # a program of its own tests them
list(FILTER narrow_sources INCLUDE REGEX "/(narrow|narrow_e4m3|narrow_e4m3_blocks|narrow_s8|tensor_map)\\.cu\\.cc$")
list(REMOVE_ITEM translated_sources ${narrow_sources})
set(exchange_sources ${translated_sources}) # and these
list(FILTER exchange_sources INCLUDE REGEX "/(exchange|reduce_norm|row_ops|row_runs)\\.cu\\.cc$")
list(REMOVE_ITEM translated_sources ${exchange_sources})
add_library(emulation_narrow OBJECT ${narrow_sources})
add_library(emulation_exchange OBJECT ${exchange_sources})
add_library(emulation_kernels OBJECT ${translated_sources})
foreach(part kernels narrow exchange)
  target_compile_options(emulation_${part} PRIVATE -w -Wno-psabi -O1 -g1 -fno-strict-aliasing
    -fno-aggressive-loop-optimizations -fwrapv ${emulation_flags} -include ${emulation_folder}/device.h)
  target_include_directories(emulation_${part} PRIVATE ${emulated}/src src ${emulation_folder})
  add_dependencies(emulation_${part} emulation_translated)
endforeach()

file(GLOB emulation_sources CONFIGURE_DEPENDS ${emulation_folder}/*.cc)
list(FILTER emulation_sources EXCLUDE REGEX "/(test|order)_[^/]*$")
add_library(emulation_runtime OBJECT ${emulation_sources})
target_compile_options(emulation_runtime PRIVATE -O3 -g1 ${emulation_flags})
target_include_directories(emulation_runtime PRIVATE ${emulation_folder})

file(GLOB_RECURSE cuda_host_sources CONFIGURE_DEPENDS src/backend/cuda/*.c)
add_library(emulation_host OBJECT ${cuda_host_sources} ${SLUICE_CUDA_BASE_SOURCES})
target_include_directories(emulation_host PRIVATE src)

foreach(part kernels narrow exchange runtime host)
  target_include_directories(emulation_${part} SYSTEM PRIVATE ${SLUICE_CUDA_INCLUDE})
  target_compile_definitions(emulation_${part} PRIVATE EMU_CUDA_ARCH=900 EMU_CUDA_ARCH_FEAT_SM90_ALL)
  set_target_properties(emulation_${part} PROPERTIES CXX_STANDARD 17)
endforeach()

# The same module twice: fibers in order, and in an order that is random but always the same.
foreach(order plain shuffled)
  add_library(emulation_${order} MODULE $<TARGET_OBJECTS:emulation_kernels> $<TARGET_OBJECTS:emulation_narrow>
    $<TARGET_OBJECTS:emulation_exchange> $<TARGET_OBJECTS:emulation_runtime> $<TARGET_OBJECTS:emulation_host> ${emulation_folder}/order_${order}.cc)
  target_compile_options(emulation_${order} PRIVATE ${emulation_flags})
  target_include_directories(emulation_${order} PRIVATE ${emulation_folder})
  target_include_directories(emulation_${order} SYSTEM PRIVATE ${SLUICE_CUDA_INCLUDE})
  target_link_libraries(emulation_${order} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
  # No library on the machine (cuBLAS) can do anything on this GPU: none is found.
  target_link_options(emulation_${order} PRIVATE -Wl,--no-undefined -Wl,--wrap=dlopen)
  set_target_properties(emulation_${order} PROPERTIES OUTPUT_NAME sluice-cuda PREFIX lib
    LIBRARY_OUTPUT_DIRECTORY ${emulated}/$<$<STREQUAL:${order},shuffled>:shuffled>)
endforeach()
