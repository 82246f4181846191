# Writes OUTPUT, a C file with the page of `sluice serve`, from the files in SOURCE (server/page/): page.html with all styles
# and scripts in the places of @style@ and @script@. With PAGE, the HTML text is written there too.
#
# The scripts are classic ones that share one scope, so a name is there for those behind it in this list.
cmake_minimum_required(VERSION 3.25)
set(scripts dom icons preferences store transfer api stream highlight markdown_inline markdown_block
  markdown files tree message conversation list composer settings server_figures server_view main)

set(script "'use strict';\n")
foreach(name ${scripts})
  file(READ ${SOURCE}/${name}.js text)
  string(APPEND script "${text}")
endforeach()
set(style "")
foreach(name page markdown server_view)
  file(READ ${SOURCE}/${name}.css text)
  string(APPEND style "${text}")
endforeach()
file(READ ${SOURCE}/page.html html)

# What is forgotten in the list would be missed in a browser only.
file(GLOB files RELATIVE ${SOURCE} ${SOURCE}/*.js)
foreach(name ${files})
  string(REGEX REPLACE "\\.js$" "" name ${name})
  if(NOT name IN_LIST scripts)
    message(FATAL_ERROR "${SOURCE}/${name}.js is not in the list of cmake/page.cmake")
  endif()
endforeach()
# An HTML parser ends a script at the one and a style at the other, wherever they stand.
string(TOLOWER "${script}" lower)
if(lower MATCHES "</script|<!--")
  message(FATAL_ERROR "${SOURCE}: a script has </script or <!-- in it, which ends it in HTML")
endif()
string(TOLOWER "${style}" lower)
if(lower MATCHES "</style")
  message(FATAL_ERROR "${SOURCE}: a style has </style in it, which ends it in HTML")
endif()

# Lengths and places are in bytes.
string(FIND "${html}" "@style@" style_at)
string(REPLACE "@style@" "${style}" html "${html}")
string(FIND "${html}" "@script@" script_at REVERSE)
if(style_at LESS 0 OR script_at LESS 0)
  message(FATAL_ERROR "${SOURCE}/page.html lacks @style@ or @script@")
endif()
string(REPLACE "@script@" "${script}" html "${html}")
string(LENGTH "${style}" style_length)
string(LENGTH "${script}" script_length)
string(LENGTH "${html}" length)
if(NOT PAGE)
  set(PAGE ${OUTPUT}.html)
endif()
file(WRITE ${PAGE} "${html}")
file(READ ${PAGE} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "/* The page; written by cmake/page.cmake. */
#include \"page.h\"
const size_t PAGE_LENGTH = ${length};
const page_part PAGE_STYLE = {${style_at}, ${style_length}}, PAGE_SCRIPT = {${script_at}, ${script_length}};
const unsigned char PAGE_TEXT[] = {${bytes}};
")
