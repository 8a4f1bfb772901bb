# LibTorch as one interface target `zs_torch`: from the torch wheel of the Python that configures us, or from the folder
# ZEROSHARD_TORCH_ROOT (it holds include/ and lib/). The libraries are named here and not through TorchConfig.cmake: a
# CUDA wheel's asks for the whole CUDA toolkit (cuBLAS, cuSPARSE, ...), of which zeroshard needs the runtime's headers only.
include(ZeroshardPython)
set(ZEROSHARD_TORCH_ROOT "" CACHE PATH "LibTorch's folder; empty: that of the torch wheel in Python_EXECUTABLE")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
set(torch_root ${ZEROSHARD_TORCH_ROOT})
if(NOT torch_root)
  zs_python_package(torch torch_root)
  if(NOT torch_root)
    message(FATAL_ERROR "PyTorch is not installed in ${Python_EXECUTABLE}: run `make build`, or `pip install torch`")
  endif()
endif()

file(STRINGS ${torch_root}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" version_lines "${version_lines}")
list(JOIN version_lines "." Torch_VERSION)
if(Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.16)
  message(WARNING "LibTorch ${Torch_VERSION} is untested: zeroshard is built and tested with 2.11 to 2.15")
endif()

# ON: *_cuda.cpp files are built; OFF: their *_no_cuda.cpp twins. The default follows the wheel.
if(EXISTS ${torch_root}/lib/libtorch_cuda.so)
  set(torch_has_cuda ON)
else()
  set(torch_has_cuda OFF)
endif()
option(ZEROSHARD_CUDA "Build the CUDA variant" ${torch_has_cuda})
set(torch_libraries torch torch_cpu c10)
if(ZEROSHARD_CUDA)
  if(NOT torch_has_cuda)
    message(FATAL_ERROR "ZEROSHARD_CUDA=ON, but the LibTorch in ${torch_root} is a CPU build: use a CUDA wheel, or -DZEROSHARD_CUDA=OFF")
  endif()
  find_program(ZS_NVCC nvcc PATHS /usr/local/cuda/bin ${torch_root}/../nvidia/cu13/bin)
  if(ZS_NVCC)
    get_filename_component(nvcc_dir ${ZS_NVCC} REALPATH)
    get_filename_component(nvcc_dir ${nvcc_dir} DIRECTORY)
  endif()
  find_path(ZS_CUDA_INCLUDE cuda_runtime_api.h REQUIRED NO_DEFAULT_PATH
            PATHS ${nvcc_dir}/../include $ENV{CUDA_HOME}/include /usr/local/cuda/include
                  ${torch_root}/../nvidia/cu13/include ${torch_root}/../nvidia/cuda_runtime/include)
  # For the collectives of programs without Python: src/comm_c10d/device_group_cuda.cpp. The packages that the CUDA wheel
  # asks for (nvidia-nccl, nvidia-cusparse, ...) have the headers.
  find_path(ZS_NCCL_INCLUDE nccl.h PATHS ${torch_root}/../nvidia/nccl/include ${nvcc_dir}/../include)
  # A toolkit may have the runtime alone.
  find_path(ZS_CUSPARSE_INCLUDE cusparse.h NO_DEFAULT_PATH
            PATHS ${ZS_CUDA_INCLUDE} ${torch_root}/../nvidia/cu13/include ${torch_root}/../nvidia/cusparse/include)
  if(NOT ZS_NCCL_INCLUDE OR NOT ZS_CUSPARSE_INCLUDE)
    message(WARNING "no nccl.h or no cusparse.h was found: zeroshard train and generate take a GPU for one rank only")
  endif()
  list(PREPEND torch_libraries torch_cuda c10_cuda)
  # With the compiler of CUDA, zeroshard's own kernels (*.cu) are built; without it LibTorch's operations do their work.
  find_library(ZS_CUDART cudart NO_DEFAULT_PATH
               PATHS ${nvcc_dir}/../lib64 ${nvcc_dir}/../lib $ENV{CUDA_HOME}/lib64 /usr/local/cuda/lib64
                     /usr/local/cuda/lib ${torch_root}/../nvidia/cu13/lib)
  if(NOT ZS_NVCC OR NOT ZS_CUDART)
    message(WARNING "no nvcc with its libcudart was found: zeroshard's own kernels are left out")
  endif()
  # Those of torch's wheel: tools/cuda_check.sh compares.
  set(ZEROSHARD_CUDA_ARCHITECTURES "75;80;86;90;100;120" CACHE STRING "Cards that kernels are compiled for (80: A100)")
endif()
message(STATUS "LibTorch ${Torch_VERSION} in ${torch_root}, CUDA ${ZEROSHARD_CUDA}")

# Debian's gloo headers match what the wheel's ProcessGroupGloo was built from closely enough (tests/comm_c10d holds it).
find_path(ZS_GLOO_INCLUDE gloo/transport/device.h REQUIRED)

add_library(zs_torch INTERFACE)
target_include_directories(zs_torch SYSTEM INTERFACE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include ${ZS_GLOO_INCLUDE} ${ZS_CUDA_INCLUDE}
  $<$<BOOL:${ZS_NCCL_INCLUDE}>:${ZS_NCCL_INCLUDE}> $<$<BOOL:${ZS_CUSPARSE_INCLUDE}>:${ZS_CUSPARSE_INCLUDE}>)
list(TRANSFORM torch_libraries REPLACE "(.+)" "${torch_root}/lib/lib\\1.so")
# CUDA's kernels register themselves when libtorch_cuda is loaded, so it must stay linked though no symbol of it is used.
# The CUDA wheel's own needs (cuBLAS, NCCL, ...) lie elsewhere, or, where the variant is only compiled, nowhere.
target_link_options(zs_torch INTERFACE -Wl,--no-as-needed $<$<BOOL:${ZEROSHARD_CUDA}>:-Wl,--allow-shlib-undefined>)
target_link_libraries(zs_torch INTERFACE ${torch_libraries})
# The OpenMP runtime, of which src/device/parallel_for.cpp asks for threads, is LibTorch's own: a process has one.
set(openmp gomp)
if(EXISTS ${torch_root}/lib/libgomp.so.1)
  set(openmp ${torch_root}/lib/libgomp.so.1)
endif()
target_link_libraries(zs_torch INTERFACE ${openmp})
target_compile_options(zs_torch INTERFACE -Wno-conversion -Wno-unused-parameter)
target_compile_definitions(zs_torch INTERFACE USE_C10D_GLOO)
set(ZS_TORCH_LIB_DIR ${torch_root}/lib)

# A core: what the Python package has for one torch, in a folder that python/zeroshard/core.py finds by its name. The
# package may be moved with its torch; what is installed as a C++ library looks where LibTorch was when it was built.
set(variant cpu)
if(ZEROSHARD_CUDA)
  file(STRINGS ${torch_root}/version.py cuda_line REGEX "^cuda.*= *'[0-9]+")
  string(REGEX MATCH "[0-9]+" cuda_major "${cuda_line}")
  set(variant cu${cuda_major})
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${Torch_VERSION}")
string(REPLACE "." "_" minor "${minor}")
set(ZS_CORE_DIR zeroshard/cores/torch_${minor}_${variant})
# A program that was built for another torch is not installed with this one's core.
if(NOT "${Torch_VERSION} ${variant}" STREQUAL "${ZS_BUILT_FOR}")
  file(REMOVE ${PROJECT_BINARY_DIR}/cli/zeroshard-torch)
  set(ZS_BUILT_FOR "${Torch_VERSION} ${variant}" CACHE INTERNAL "")
endif()
set(ZS_CORE_RPATH "$ORIGIN/../../../torch/lib" "$ORIGIN/../../../nvidia/cu${cuda_major}/lib")
if(NOT ZEROSHARD_CUDA)
  list(POP_BACK ZS_CORE_RPATH)
endif()
if(NOT ZEROSHARD_MOVABLE)
  list(APPEND ZS_CORE_RPATH ${ZS_TORCH_LIB_DIR})
endif()
set(ZS_CORE_INSTALL)
if(NOT SKBUILD)
  set(ZS_CORE_INSTALL EXCLUDE_FROM_ALL)
endif()

add_library(zs_torch_pch STATIC ${PROJECT_SOURCE_DIR}/src/base/torch_pch.cpp)
target_link_libraries(zs_torch_pch PUBLIC zs_torch Threads::Threads)
target_include_directories(zs_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_precompile_headers(zs_torch_pch PRIVATE <base/torch_pch.h>)
# The compiled header has paths and times in it, so that ccache would find nothing in another clone. It takes this file
# in its place, which says what the header is made of; options of the compiler it compares by itself.
file(SHA256 ${PROJECT_SOURCE_DIR}/src/base/torch_pch.h pch_hash)
file(READ ${torch_root}/version.py torch_build)
set(pch_ending gch)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(pch_ending pch)
endif()
file(CONFIGURE OUTPUT CMakeFiles/zs_torch_pch.dir/cmake_pch.hxx.${pch_ending}.sum @ONLY
     CONTENT "@pch_hash@ @CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@\n@torch_build@")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/base/torch_pch.h)
