# Text files that become part of a program.
#
#   braid_embed(TARGET HEADER FILE...)  compiles a definition of every file into TARGET: chart.js is the std::string_view
#                                       kChartJs of namespace braid, which HEADER declares
#
# The definitions are written when a file changes, by this file run as a script:
#   cmake -DOUTPUT=... -DHEADER=... -DFILES=a.js|b.css -P EmbedFiles.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "#include \"${HEADER}\"\n\nnamespace braid {\n")
  string(REPLACE "|" ";" files "${FILES}")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME)
    string(REGEX REPLACE "[^a-zA-Z0-9]+" ";" words "${name}")
    set(identifier k)
    foreach(word IN LISTS words)
      string(SUBSTRING "${word}" 0 1 first)
      string(TOUPPER "${first}" first)
      string(SUBSTRING "${word}" 1 -1 rest)
      string(APPEND identifier "${first}${rest}")
    endforeach()
    file(READ "${file}" content)
    string(APPEND text "const std::string_view ${identifier} = R\"embedded(${content})embedded\";\n")
  endforeach()
  file(WRITE "${OUTPUT}" "${text}}  // namespace braid\n")
  return()
endif()

set(braid_embed_script ${CMAKE_CURRENT_LIST_FILE})
function(braid_embed target header)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cpp)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  string(REPLACE ";" "|" joined "${files}")
  add_custom_command(OUTPUT ${output} DEPENDS ${files} ${braid_embed_script} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DHEADER=${header} -DFILES=${joined} -P ${braid_embed_script})
  target_sources(${target} PRIVATE ${output})
endfunction()
