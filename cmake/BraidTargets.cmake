# How Braid's targets are made.
#
#   braid_library(NAME ...)     the static library of one folder of src/
#   braid_executable(NAME ...)  a program, left at the top of the build folder
#   braid_test(FOLDER ...)      the tests of that folder, as one program
#   braid_links_first(...)      the optimised files of libraries before all others of a program
#   braid_uses_optional(...)    files that use a library which a machine may lack
#   braid_uses_cuda(FILE...)    files whose result depends on BRAID_CUDA
#
# The first three take SOURCES, COLD_SOURCES, TORCH_SOURCES, COLD_TORCH_SOURCES and DEPENDS (libraries). Only the two with
# TORCH see libtorch's headers, so a stray include elsewhere does not compile. Cold files are not optimised, since
# little time is spent in them. With clang, files share precompiled headers; g++'s is too large (750 MB) to pay off. In
# tests/, braid_compiles_tests is set.

# With --as-needed, a program that calls nothing of libtorch does not load it, which saves a quarter of a second. libtorch_cpu
# exports parts of the C++ library, which must therefore come first.
add_link_options(LINKER:--no-as-needed -lstdc++ LINKER:--as-needed)

set(braid_warnings -Wall -Wextra $<$<BOOL:${BRAID_WERROR}>:-Werror>)
if(BRAID_SANITIZE)
  add_compile_options(-fsanitize=${BRAID_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${BRAID_SANITIZE})
endif()

# braid_pch(NAME FLAGS LIBRARIES HEADER INCLUDE...): the precompiled header NAME of HEADER and then the others.
#
# The first file must belong to a library. Clang records the paths of the files it reads, and a path of this checkout
# would keep other checkouts from reusing the result through ccache. Time stamps are left out for the same reason.
# CMake's target_precompile_headers() always starts from a file in the build folder.
function(braid_pch name flags libraries header)
  set(object braid_${name}_pch)
  add_library(${object} OBJECT ${header})
  set_source_files_properties(${header} PROPERTIES LANGUAGE CXX)
  # Instantiating templates here, once, takes 1.5 s off every file that uses libtorch's.
  target_compile_options(${object} PRIVATE ${flags}
    "SHELL:-x c++-header -fpch-instantiate-templates -Xclang -fno-pch-timestamp")
  foreach(include IN LISTS ARGN)
    target_compile_options(${object} PRIVATE "SHELL:-include ${include}")
  endforeach()
  target_link_libraries(${object} PRIVATE ${libraries})
  # Ninja lets objects wait for a custom target, not for the object of another library.
  set(file ${CMAKE_BINARY_DIR}/${name}.pch)
  add_custom_command(OUTPUT ${file} DEPENDS $<TARGET_OBJECTS:${object}>
    COMMAND ${CMAKE_COMMAND} -E create_hardlink $<TARGET_OBJECTS:${object}> ${file} VERBATIM)
  add_custom_target(${object}_ready DEPENDS ${file})
endfunction()

# Every file sees these headers of the standard library and fmt/format.h, so that none includes them: clang's precompiled
# headers hold them, and g++ reads a file of them first. Files that nvcc compiles too (src/kernels, base/random_values.h) include what they use.
set(braid_standard_headers algorithm array atomic bit cctype cerrno charconv chrono cmath condition_variable cstddef
  cstdint cstdio cstdlib cstring ctime deque exception filesystem fstream functional initializer_list iterator limits
  map memory mutex numeric optional random set span sstream string string_view system_error thread tuple type_traits
  unordered_map unordered_set utility variant vector)
set(braid_common_headers fmt/ranges.h nlohmann/json.hpp ${braid_standard_headers})
set(braid_torch_headers ${BRAID_TORCH_DIR}/include/torch/csrc/api/include/torch/types.h
  torch/csrc/autograd/function.h torch/csrc/distributed/c10d/Backend.hpp ${braid_common_headers})
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  find_path(BRAID_FMT_INCLUDE fmt/format.h REQUIRED)
  set(libraries fmt::fmt nlohmann_json::nlohmann_json)
  set(plain_headers ${BRAID_FMT_INCLUDE}/fmt/format.h ${braid_common_headers})
  braid_pch(plain "" "${libraries}" ${plain_headers})
  braid_pch(torch "" "libtorch;${libraries}" ${braid_torch_headers})
  if(BRAID_TESTS)
    braid_pch(plain_tests -O0 "${libraries};GTest::gmock" ${plain_headers} gmock/gmock.h)
    braid_pch(torch_tests -O0 "libtorch;${libraries};GTest::gmock" ${braid_torch_headers} gmock/gmock.h)
  endif()
else()
  list(TRANSFORM braid_standard_headers REPLACE ".+" "#include <\\0>\n" OUTPUT_VARIABLE includes)
  list(JOIN includes "" includes)
  string(APPEND includes "#include <fmt/format.h>\n")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/standard_headers.h CONTENT "${includes}")
endif()

# Compiles the sources of `target`, which see libtorch (`pch` "torch") or do not ("plain"), with these options. Tests spend
# their time in the libraries that they test, and cold files in those that they call; without optimisation both compile in
# a third of the time.
function(braid_compile_options target pch)
  target_compile_options(${target} PRIVATE ${braid_warnings} $<$<BOOL:${braid_compiles_tests}>:-O0> ${ARGN})
  if(braid_compiles_tests)
    string(APPEND pch _tests)
  endif()
  if(TARGET braid_${pch}_pch)
    add_dependencies(${target} braid_${pch}_pch_ready)
    target_compile_options(${target} PRIVATE
      "SHELL:-Xclang -fno-pch-timestamp -Xclang -include-pch -Xclang ${CMAKE_BINARY_DIR}/${pch}.pch")
    return()
  endif()
  target_compile_options(${target} PRIVATE "SHELL:-include ${CMAKE_BINARY_DIR}/standard_headers.h")
  if(pch MATCHES torch)
    # As in the precompiled header, at::Tensor and its operators are declared everywhere: the text of a file does not show
    # that it adds tensors, so tests/base/includes_test.cpp could not ask for this include. With AT_PER_OPERATOR_HEADERS
    # the header does not include all functions, and costs nothing.
    target_compile_options(${target} PRIVATE -DAT_PER_OPERATOR_HEADERS "SHELL:-include ATen/TensorOperators.h")
  endif()
endfunction()

# Compiles these files as the object library `target`_`part` and adds them to `target`.
function(braid_add_objects target part pch options libraries)
  if(ARGN)
    set(objects ${target}_${part})
    add_library(${objects} OBJECT ${ARGN})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_link_libraries(${objects} PRIVATE ${libraries})
    braid_compile_options(${objects} ${pch} ${options})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endif()
endfunction()

function(braid_add_parts target)
  cmake_parse_arguments(PART "" "" "SOURCES;COLD_SOURCES;TORCH_SOURCES;COLD_TORCH_SOURCES;DEPENDS" ${ARGN})
  target_sources(${target} PRIVATE ${PART_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${PART_DEPENDS})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)  # not known if all files are in other parts
  # Precompiled headers hold no machine code, so cold files share them. Clang would refuse that: __OPTIMIZE__ is defined in them.
  set(cold -O0)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND cold "SHELL:-Xclang -fno-validate-pch")
  endif()
  set(with_torch ${PART_DEPENDS} libtorch)
  braid_compile_options(${target} plain)
  braid_add_objects(${target} torch torch "" "${with_torch}" ${PART_TORCH_SOURCES})
  braid_add_objects(${target} cold plain "${cold}" "${PART_DEPENDS}" ${PART_COLD_SOURCES})
  braid_add_objects(${target} cold_torch torch "${cold}" "${with_torch}" ${PART_COLD_TORCH_SOURCES})
  if(PART_TORCH_SOURCES OR PART_COLD_TORCH_SOURCES)
    target_link_libraries(${target} PRIVATE
      $<LINK_ONLY:$<$<NOT:$<BOOL:$<TARGET_PROPERTY:BRAID_WITHOUT_LIBTORCH>>>:libtorch>>)
  endif()
endfunction()

# braid_uses_optional(FOLDER FILES NAME...): FILES of a folder's library use libraries of the data path that a machine may
# lack (cmake/Dependencies.cmake). BRAID_HAS_<NAME> is defined for them if it has the library.
function(braid_uses_optional folder files)
  foreach(name IN LISTS ARGN)
    if(BRAID_HAS_${name})
      target_link_libraries(braid_${folder} PUBLIC braid_${name})
      set_property(SOURCE ${files} APPEND PROPERTY COMPILE_DEFINITIONS BRAID_HAS_${name})
    endif()
  endforeach()
endfunction()

# braid_uses_cuda(FILE...): these files may include CUDA's headers and ops/has_kernel.h. All others compile to the same
# with and without BRAID_CUDA, so that ccache serves both builds.
function(braid_uses_cuda)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_DEFINITIONS BRAID_HAS_KERNELS=$<BOOL:${BRAID_CUDA}>)
  if(BRAID_CUDA)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_DEFINITIONS
      USE_CUDA USE_C10D_NCCL $<TARGET_PROPERTY:braid_kernels,INTERFACE_COMPILE_DEFINITIONS>)
    list(TRANSFORM CUDAToolkit_INCLUDE_DIRS PREPEND -isystem OUTPUT_VARIABLE cuda_headers)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${cuda_headers} -isystem${NCCL_INCLUDE_DIR})
  endif()
endfunction()

function(braid_library name)
  add_library(braid_${name} STATIC)
  braid_add_parts(braid_${name} ${ARGN})
endfunction()

function(braid_executable name)
  add_executable(${name})
  target_link_options(${name} PRIVATE LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
  braid_add_parts(${name} ${ARGN})
endfunction()

# braid_links_first(TARGET LIBRARY...): TARGET, which must depend on these libraries, gets their optimised objects before
# its own and all others. Of the copies of an inline function the linker keeps the first one, so that one is optimised.
function(braid_links_first target)
  foreach(library IN LISTS ARGN)
    target_link_options(${target} PRIVATE $<TARGET_OBJECTS:${library}>)
    if(TARGET ${library}_torch)
      target_link_options(${target} PRIVATE
        $<$<NOT:$<BOOL:$<TARGET_PROPERTY:BRAID_WITHOUT_LIBTORCH>>>:$<TARGET_OBJECTS:${library}_torch>>)
    endif()
  endforeach()
endfunction()

# Ends tests that hang. A busy machine may take ten times as long as an idle one.
set(braid_test_timeout_s 3600)
function(braid_test folder)
  set(name ${folder}_test)
  cmake_parse_arguments(TEST "" "" "SOURCES;TORCH_SOURCES;DEPENDS" ${ARGN})
  braid_executable(${name} SOURCES ${TEST_SOURCES} TORCH_SOURCES ${TEST_TORCH_SOURCES}
    DEPENDS ${TEST_DEPENDS} GTest::gmock GTest::gtest_main)
  if(TARGET braid_${folder})
    braid_links_first(${name} braid_${folder})
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  add_test(NAME ${folder} COMMAND ${name})
  set_tests_properties(${folder} PROPERTIES TIMEOUT ${braid_test_timeout_s} ENVIRONMENT OMP_NUM_THREADS=1)
  set_property(GLOBAL APPEND PROPERTY braid_test_sources ${TEST_SOURCES} ${TEST_TORCH_SOURCES})
endfunction()

# A test file that no list names would silently never run.
function(braid_check_every_test_is_listed)
  file(GLOB_RECURSE on_disk RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *_test.cpp)
  get_property(listed GLOBAL PROPERTY braid_test_sources)
  foreach(file IN LISTS on_disk)
    if(NOT file IN_LIST listed)
      message(FATAL_ERROR "tests/${file} is in no braid_test() list of tests/CMakeLists.txt")
    endif()
  endforeach()
endfunction()
