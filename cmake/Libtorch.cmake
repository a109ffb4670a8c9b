# The target `libtorch`: headers and libraries of an installed torch wheel.
#
# TorchConfig.cmake insists on finding a CUDA toolkit, which a machine without a GPU lacks, so the target is
# written by hand. The CPU build links libtorch_cpu only; it still needs libcudart and libcupti from the wheels
# beside torch, found through the run path.
if(NOT BRAID_TORCH_DIR)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE BRAID_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${BRAID_TORCH_DIR}/include/torch/csrc/api/include/torch/version.h")
  message(FATAL_ERROR "libtorch not found (looked in '${BRAID_TORCH_DIR}').\n"
    "  fix: run ./dev build, which installs it, or pass -DBRAID_TORCH_DIR=<site-packages>/torch of torch 2.11")
endif()
message(STATUS "libtorch: ${BRAID_TORCH_DIR}")

get_filename_component(site_packages ${BRAID_TORCH_DIR} DIRECTORY)
file(GLOB torch_library_dirs ${site_packages}/nvidia/*/lib)
list(PREPEND torch_library_dirs ${BRAID_TORCH_DIR}/lib)

add_library(libtorch INTERFACE)
target_include_directories(libtorch SYSTEM INTERFACE
  ${BRAID_TORCH_DIR}/include ${BRAID_TORCH_DIR}/include/torch/csrc/api/include ${CMAKE_SOURCE_DIR}/cmake/gloo)
add_library(torch_fmt STATIC cmake/torch_fmt.cpp)
target_include_directories(torch_fmt SYSTEM PRIVATE ${BRAID_TORCH_DIR}/include)
target_compile_definitions(libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_directories(libtorch INTERFACE ${BRAID_TORCH_DIR}/lib)
target_link_libraries(libtorch INTERFACE torch_fmt c10 torch_cpu)
foreach(dir IN LISTS torch_library_dirs)
  target_link_options(libtorch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()

if(BRAID_CUDA)
  find_package(CUDAToolkit REQUIRED)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${site_packages}/nvidia/nccl/include REQUIRED)
  # The registration of CUDA's operators happens in libtorch_cuda's initialisers, so it must not be dropped.
  target_link_libraries(libtorch INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed $<LINK_ONLY:CUDA::cudart>)
endif()
