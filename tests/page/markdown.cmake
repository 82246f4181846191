# The page's scripts that need no browser, in Node alone. markdown_spec fetches what it compares with into the build folder.
if(SLUICE_SANITIZE)
  return() # nothing of it is compiled
endif()
find_program(NODE node)
foreach(name markdown markdown_spec highlight server_view)
  if(NODE)
    add_test(NAME page_${name} COMMAND ${NODE} ${CMAKE_CURRENT_SOURCE_DIR}/${name}.test.mjs
      --packages ${CMAKE_CURRENT_BINARY_DIR}/markdown)
  else()
    add_test(NAME page_${name} COMMAND sh -c "echo 'skipped: no node on this machine'; exit 77")
  endif()
  set_tests_properties(page_${name} PROPERTIES LABELS server SKIP_RETURN_CODE 77 TIMEOUT 900)
endforeach()
set_property(TEST page_markdown APPEND PROPERTY LABELS time)
