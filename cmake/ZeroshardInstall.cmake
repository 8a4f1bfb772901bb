# zeroshard as an installed C++ library: headers, programs, and a CMake package (docs/library.md).
#   cmake --install BUILD --prefix PREFIX --component library
#   cmake --install BUILD --prefix PREFIX --component lm         what is in lm/, besides
# One archive of a tree's torch-free modules' objects, and one of those that use LibTorch: which modules there are is no
# concern of those who link them, and they need no run path to zeroshard.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The Python package consists of the component core and of what has none; it gets none of this.
set(library COMPONENT library)
set(lm COMPONENT lm)
if(SKBUILD)
  list(APPEND library EXCLUDE_FROM_ALL)
  list(APPEND lm EXCLUDE_FROM_ALL)
endif()
if(SKBUILD AND ZEROSHARD_CORES)
  install(DIRECTORY ${ZEROSHARD_CORES}/ DESTINATION . USE_SOURCE_PERMISSIONS)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zeroshard)

# zs_archive(zeroshard_core core ZS_CORE_MODULES zeroshardTargets ...): libzeroshard_core.a, exported as zeroshard::core
function(zs_archive file exported modules targets)
  get_property(modules GLOBAL PROPERTY ${modules})
  list(TRANSFORM modules REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_library(${file}_archive STATIC ${modules})
  set_target_properties(${file}_archive PROPERTIES EXPORT_NAME ${exported} OUTPUT_NAME ${file} LINKER_LANGUAGE CXX)
  target_compile_features(${file}_archive INTERFACE cxx_std_20)
  install(TARGETS ${file}_archive EXPORT ${targets} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${ARGN}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# Targets zeroshard::... that are not exported are made by zeroshardConfig.cmake, out of what the user's machine has.
zs_archive(zeroshard_core core ZS_CORE_MODULES zeroshardTargets ${library})
target_link_libraries(zeroshard_core_archive INTERFACE Threads::Threads)
if(ZEROSHARD_WITH_TORCH)
  zs_archive(zeroshard zeroshard ZS_TORCH_MODULES zeroshardTargets ${library})
  target_link_libraries(zeroshard_archive INTERFACE zeroshard_core_archive $<INSTALL_INTERFACE:zeroshard::torch>)
endif()
install(TARGETS zeroshard_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${library})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zeroshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${library}
        FILES_MATCHING PATTERN "*.h")
install(EXPORT zeroshardTargets NAMESPACE zeroshard:: DESTINATION ${package_dir} ${library})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/zeroshardConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/zeroshardConfig.cmake INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/zeroshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/zeroshardConfig.cmake ${PROJECT_BINARY_DIR}/package/zeroshardConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/zeroshardTorch.cmake
        DESTINATION ${package_dir} ${library})

if(NOT ZEROSHARD_WITH_LM)
  return()
endif()
zs_archive(zeroshard_lm_core lm_core ZS_LM_CORE_MODULES zeroshardLmTargets ${lm})
target_link_libraries(zeroshard_lm_core_archive INTERFACE zeroshard_core_archive ${CMAKE_DL_LIBS}
  $<INSTALL_INTERFACE:zeroshard::pcre2> $<INSTALL_INTERFACE:zeroshard::utf8proc>)
if(ZEROSHARD_WITH_TORCH)
  zs_archive(zeroshard_lm lm ZS_LM_TORCH_MODULES zeroshardLmTargets ${lm})
  target_link_libraries(zeroshard_lm_archive INTERFACE zeroshard_lm_core_archive zeroshard_archive)
  install(TARGETS zeroshard_torch RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${lm})
endif()
if(TARGET zs_parquet)
  install(TARGETS zs_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR} ${lm})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lm/include/zeroshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${lm}
        FILES_MATCHING PATTERN "*.h")
install(EXPORT zeroshardLmTargets NAMESPACE zeroshard:: DESTINATION ${package_dir} ${lm})
