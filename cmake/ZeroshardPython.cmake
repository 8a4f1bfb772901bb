# Sets `folder` to where Python_EXECUTABLE has a package, which is not imported; to nothing where it has none.
function(zs_python_package name folder)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('${name}').submodule_search_locations[0])"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE missing)
  if(missing)
    set(found "")
  endif()
  set(${folder} "${found}" PARENT_SCOPE)
endfunction()
