# Compiler, linker, cache and sanitizer settings shared by every target.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(ZS_CCACHE ccache)
if(ZS_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1 ${ZS_CCACHE})
endif()

# Programs share the libraries' precompiled header, so they are compiled like them: GCC rejects a -fPIC header under -fPIE.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})
add_compile_options(-Wall -Wextra -Wconversion -Wno-sign-conversion -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fpch-preprocess)
else()
  add_compile_options(-Wno-deprecated-declarations)  # libstdc++'s own std::stable_sort calls one
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  # Since 18, clang writes the constraints of templates into their symbols. LibTorch's wheels are built by a GCC that does
  # not, so that its Tensor::const_data_ptr<double>() was not found in LibTorch 2.11.
  add_compile_options(-fclang-abi-compat=17)
endif()
if(ZEROSHARD_WERROR)
  add_compile_options(-Werror)
endif()
if(ZEROSHARD_SANITIZE)
  # vptr needs the type information of LibTorch's classes, which its wheel hides.
  add_compile_options(-fsanitize=${ZEROSHARD_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND ZEROSHARD_SANITIZE STREQUAL "thread")
    add_compile_definitions(__SANITIZE_THREAD__)  # GCC defines it by itself
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT ZEROSHARD_FUZZ)
    add_compile_options(-O0)  # clang compiles in a third of the time, and tests take as long
  endif()
  add_link_options(-fsanitize=${ZEROSHARD_SANITIZE})
  set(ZS_TEST_ENVIRONMENT
      "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1" "UBSAN_OPTIONS=print_stacktrace=1"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
endif()
if(ZEROSHARD_SANITIZE AND NOT ZEROSHARD_FUZZ)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LINK_OPTIONS -fsanitize=${ZEROSHARD_SANITIZE})
  check_cxx_source_compiles("int main() {}" ZS_HAS_SANITIZERS)
  if(NOT ZS_HAS_SANITIZERS)
    unset(ZS_HAS_SANITIZERS CACHE)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} links no program with -fsanitize=${ZEROSHARD_SANITIZE}: install its runtime "
                        "(on Debian, of clang-19, libclang-rt-19-dev), or set CXX=g++ and remove ${CMAKE_BINARY_DIR}")
  endif()
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
endif()

find_program(ZS_MOLD mold)
if(ZS_MOLD)
  # Segments of whole pages: mold 1.10 lets RELRO begin at .tbss, and when that ends up in the last bytes of a page, which
  # is then mapped by no segment, the program does not start.
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_path(ZS_XXHASH_INCLUDE xxhash.h REQUIRED)  # Debian: libxxhash-dev; used as headers only

# Unity: files of one target are compiled as one source, in groups, because most of a file's time goes to the headers
# that it shares with its neighbours. A group's size bounds the compiler's memory. Files with flags of their own stay single.
set(CMAKE_UNITY_BUILD ${ZEROSHARD_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes the joined files for headers, in which a class must have no members of types from an anonymous namespace.
  add_compile_options(-Wno-subobject-linkage)
endif()
