# LibTorch from the torch wheel of the Python that configures us, as one interface target `zs_torch`.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT Torch_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch.utils; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR "PyTorch is not installed in ${Python_EXECUTABLE}: run `make build`, or `pip install torch`")
  endif()
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
find_package(Torch REQUIRED)
if(Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.14)
  message(WARNING "LibTorch ${Torch_VERSION} is untested: zeroshard is built and tested with 2.11 to 2.13")
endif()

add_library(zs_torch INTERFACE)
target_include_directories(zs_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(zs_torch INTERFACE ${TORCH_LIBRARIES})
target_compile_options(zs_torch INTERFACE -Wno-conversion -Wno-unused-parameter)
target_compile_definitions(zs_torch INTERFACE USE_C10D_GLOO)

add_library(zs_torch_pch STATIC ${CMAKE_SOURCE_DIR}/src/base/torch_pch.cpp)
target_link_libraries(zs_torch_pch PUBLIC zs_torch Threads::Threads)
target_precompile_headers(zs_torch_pch PRIVATE ${CMAKE_SOURCE_DIR}/src/base/torch_pch.h)
