# Writes OUTPUT, a header with the commit that is built and its number, with each build; touched only when they change,
# so that nothing is compiled again without need. Not in a git checkout: "unknown" and 0.
set(commit unknown)
set(number 0)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=9 HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-list --count HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE counted OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE uncounted)
  if(NOT failed AND NOT uncounted)
    set(commit ${found})
    set(number ${counted})
  endif()
endif()
set(text "/* Of the build; written by cmake/build_facts.cmake. */\n#define SLUICE_BUILD_COMMIT \"${commit}\"\n")
string(APPEND text "#define SLUICE_BUILD_NUMBER ${number}\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
