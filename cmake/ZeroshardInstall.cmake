# zeroshard as an installed C++ library: headers, programs, and a CMake package (docs/library.md).
#   cmake --install BUILD --prefix PREFIX --component library
# One archive of the torch-free modules' objects, and one of those that use LibTorch: which modules there are is no
# concern of those who link them, and they need no run path to zeroshard.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A Python package consists of what has no component; it gets none of this.
set(component COMPONENT library)
if(SKBUILD)
  list(APPEND component EXCLUDE_FROM_ALL)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zeroshard)

# zs_archive(zeroshard_core_archive core ZS_CORE_MODULES): exported as zeroshard::core, in libzeroshard_core.a
function(zs_archive target exported file modules)
  get_property(modules GLOBAL PROPERTY ${modules})
  list(TRANSFORM modules REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_library(${target} STATIC ${modules})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${exported} OUTPUT_NAME ${file} LINKER_LANGUAGE CXX)
  target_compile_features(${target} INTERFACE cxx_std_20)
  install(TARGETS ${target} EXPORT zeroshardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# Targets zeroshard::... that are not exported are made by zeroshardConfig.cmake, out of what the user's machine has.
zs_archive(zeroshard_core_archive core zeroshard_core ZS_CORE_MODULES)
target_link_libraries(zeroshard_core_archive INTERFACE Threads::Threads ${CMAKE_DL_LIBS}
  $<INSTALL_INTERFACE:zeroshard::pcre2> $<INSTALL_INTERFACE:zeroshard::utf8proc>)
set(programs zeroshard_cli)
if(ZEROSHARD_WITH_TORCH)
  zs_archive(zeroshard_archive zeroshard zeroshard ZS_TORCH_MODULES)
  target_link_libraries(zeroshard_archive INTERFACE zeroshard_core_archive $<INSTALL_INTERFACE:zeroshard::torch>)
  list(APPEND programs zeroshard_torch)
endif()

install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${component})
if(TARGET zs_parquet)
  install(TARGETS zs_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR} ${component})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zeroshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${component}
        FILES_MATCHING PATTERN "*.h")
install(EXPORT zeroshardTargets NAMESPACE zeroshard:: DESTINATION ${package_dir} ${component})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/zeroshardConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/zeroshardConfig.cmake INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/zeroshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/zeroshardConfig.cmake ${PROJECT_BINARY_DIR}/package/zeroshardConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/zeroshardTorch.cmake
        DESTINATION ${package_dir} ${component})
