# The CUDA kernels of src/kernels. A CUDA build links them. A CPU build on a machine with an nvcc compiles them and does
# nothing more, so that a broken kernel is found without a GPU; without an nvcc it leaves them out.
include(CheckLanguage)
set(ENV{CUDAHOSTCXX} ${CMAKE_CXX_COMPILER})  # check_language() would clear CMAKE_CUDA_HOST_COMPILER
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)  # check_language() would believe an earlier configuration that found none
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(BRAID_CUDA)
    message(FATAL_ERROR "BRAID_CUDA needs an nvcc that works with ${CMAKE_CXX_COMPILER}: install the CUDA toolkit, put nvcc on "
      "PATH or set CUDACXX to it, or use --preset cpu. If there is one, see ${CMAKE_BINARY_DIR}/CMakeFiles/CMakeError.log.")
  endif()
  message(STATUS "without an nvcc: the CUDA kernels are not compiled")
  return()
endif()

# sm_90a has Hopper's own instructions; the rest of the list runs elsewhere, GPUs of the future included.
set(braid_every_gpu 80-real 90a-real 100-real 90-virtual)
set(BRAID_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to compile kernels for (empty: sm_80, sm_90a, sm_100; in a CPU build sm_90a)")
if(BRAID_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${BRAID_CUDA_ARCHITECTURES})
elseif(BRAID_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${braid_every_gpu})
else()
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
  if(NOT architecture MATCHES "^([89][0-9]|1[0-9][0-9])[af]?(-real|-virtual)?$")
    message(FATAL_ERROR "BRAID_CUDA_ARCHITECTURES has ${architecture}: give GPUs by number, 80 or newer, such as 90a-real for "
      "sm_90a, separated by semicolons.")
  endif()
  set(generation ${CMAKE_MATCH_1})
  if(generation LESS 90 AND NOT architecture MATCHES "-real$")
    message(FATAL_ERROR "BRAID_CUDA_ARCHITECTURES has ${architecture}: use ${generation}-real. Newer GPUs would run its PTX, "
      "but it lacks the instructions for programmatic dependent launch.")
  endif()
endforeach()
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90(-real)?(;|$)" AND NOT CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  message(WARNING "BRAID_CUDA_ARCHITECTURES has 90, without Hopper's own instructions: H100 and H200 need 90a-real for the "
    "kernels of experts' products, fp8 and attention.")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT BRAID_CUDA_ARCHITECTURES AND CUDAToolkit_VERSION VERSION_LESS 12.8)
  list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES 100-real)
endif()
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know it with clang as the host compiler
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that libtorch uses
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")

# braid_kernels(FILE...): the static library of all kernels.
function(braid_kernels)
  add_library(braid_kernels STATIC ${ARGN})
  target_include_directories(braid_kernels PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(braid_kernels PUBLIC CUDA::cudart)
  target_compile_options(braid_kernels PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${braid_warnings}>
    "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall,-Wextra;$<$<BOOL:${BRAID_WERROR}>:-Werror=all-warnings>>")
endfunction()

# Through cuBLAS's own interface Braid chooses the algorithm of a product.
function(braid_use_cublas)
  target_sources(braid_kernels PRIVATE cublas_product.cpp)
  target_link_libraries(braid_kernels PUBLIC CUDA::cublasLt)
endfunction()

# cuDNN's attention is reached through its frontend, a library of headers. Without it attention is libtorch's.
function(braid_use_cudnn)
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${site_packages}/include)
  find_path(CUDNN_INCLUDE cudnn.h HINTS ${site_packages}/nvidia/cudnn/include ${CUDAToolkit_INCLUDE_DIRS})
  find_library(CUDNN_LIBRARY NAMES libcudnn.so.9 HINTS ${site_packages}/nvidia/cudnn/lib ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CUDNN_FRONTEND_INCLUDE OR NOT CUDNN_INCLUDE OR NOT CUDNN_LIBRARY)
    message(WARNING "cuDNN 9 or its frontend was not found, so attention will be libtorch's, which is slower for packed "
      "sequences. pip install nvidia-cudnn-cu13 nvidia-cudnn-frontend, or set CUDNN_FRONTEND_INCLUDE, CUDNN_INCLUDE and "
      "CUDNN_LIBRARY.")
    return()
  endif()
  target_sources(braid_kernels PRIVATE cudnn_attention.cpp)
  # Of this file alone: all other kernels compile as in a CPU build.
  set_source_files_properties(cudnn_attention.cpp PROPERTIES
    COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB
    COMPILE_OPTIONS "-isystem${CUDNN_FRONTEND_INCLUDE};-isystem${CUDNN_INCLUDE}")
  target_compile_definitions(braid_kernels INTERFACE BRAID_CUDNN)
  target_link_libraries(braid_kernels PUBLIC ${CUDNN_LIBRARY} CUDA::nvrtc)
endfunction()
