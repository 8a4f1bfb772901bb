# libzeroshard_parquet.so, the one part that links Arrow: zeroshard loads it for the first Parquet file (src/data), and
# does without where it is not there. Headers and libraries are those of the wheel pyarrow of the Python that configures us.
set(ZEROSHARD_PARQUET AUTO CACHE STRING "The reader of Parquet files: ON, OFF, or AUTO: where pyarrow is there")
set_property(CACHE ZEROSHARD_PARQUET PROPERTY STRINGS AUTO ON OFF)

# Sets `root` to the package's folder, and `problem` if that cannot be used.
function(zs_find_pyarrow root problem)
  set(${root} "" PARENT_SCOPE)
  if(NOT Python_EXECUTABLE)
    set(${problem} "there is no Python to look for pyarrow in" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE missing)
  if(missing)
    set(${problem} "pyarrow is not installed in ${Python_EXECUTABLE}" PARENT_SCOPE)
    return()
  endif()
  file(GLOB libraries ${folder}/libarrow.so.* ${folder}/libparquet.so.*)
  list(LENGTH libraries count)
  if(NOT EXISTS ${folder}/include/parquet/arrow/reader.h OR NOT count EQUAL 2)
    set(${problem} "the pyarrow in ${folder} comes without Arrow's headers and libraries: install the wheel" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${folder}/include/arrow/util/config.h version REGEX "define ARROW_VERSION_MAJOR ")
  string(REGEX REPLACE "[^0-9]" "" version "${version}")
  if(version LESS 26)
    set(${problem} "the pyarrow in ${folder} is version ${version}, and 26 or later is needed" PARENT_SCOPE)
    return()
  endif()
  set(${root} ${folder} PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
  set(ZS_PYARROW_LIBRARIES ${libraries} PARENT_SCOPE)
endfunction()

if(ZEROSHARD_PARQUET STREQUAL "AUTO" AND ZEROSHARD_SANITIZE)
  return()  # no C++ test uses it
endif()
if(NOT ZEROSHARD_PARQUET)
  return()
endif()
find_package(Python 3.10 QUIET COMPONENTS Interpreter)
zs_find_pyarrow(pyarrow problem)
if(problem)
  if(NOT ZEROSHARD_PARQUET STREQUAL "AUTO")
    message(FATAL_ERROR "ZEROSHARD_PARQUET=${ZEROSHARD_PARQUET}, but ${problem}")
  endif()
  message(STATUS "Parquet files are not read: ${problem}")
  return()
endif()
message(STATUS "Parquet files are read by Arrow in ${pyarrow}")

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/parquet_plugin/*.cpp)
add_library(zs_parquet MODULE ${sources})
# Beside the programs, where they look for it.
set_target_properties(zs_parquet PROPERTIES OUTPUT_NAME zeroshard_parquet PREFIX lib CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cli INSTALL_RPATH
  "$ORIGIN/../lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}/site-packages/pyarrow:${pyarrow}")
target_include_directories(zs_parquet PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(zs_parquet SYSTEM PRIVATE ${pyarrow}/include)
target_link_libraries(zs_parquet PRIVATE ${ZS_PYARROW_LIBRARIES})
if(SKBUILD)
  install(TARGETS zs_parquet LIBRARY DESTINATION ${SKBUILD_SCRIPTS_DIR})
endif()
