# How a room of the house is built: the flags that every target of ours shares, and the two functions with which a
# room and its tests declare themselves.

# Bits are the product: no contraction, no fast-math, and every implicit narrowing of a float is an error.
add_library(qattn_flags INTERFACE)
target_compile_features(qattn_flags INTERFACE cxx_std_20)
target_compile_options(qattn_flags INTERFACE
  $<BUILD_INTERFACE:-ffp-contract=off>
  $<BUILD_INTERFACE:-fno-fast-math>
  $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wpedantic> $<BUILD_INTERFACE:-Wshadow>
  $<BUILD_INTERFACE:-Wfloat-conversion> $<BUILD_INTERFACE:-Wdouble-promotion> $<BUILD_INTERFACE:-Wold-style-cast>
  $<BUILD_INTERFACE:-Wnon-virtual-dtor> $<BUILD_INTERFACE:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives of these two inside inlined library code at -O3.
  target_compile_options(qattn_flags INTERFACE $<BUILD_INTERFACE:-Wno-restrict> $<BUILD_INTERFACE:-Wno-array-bounds>)
endif()

set(QATTN_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, comma separated")
if(QATTN_SANITIZE)
  target_compile_options(qattn_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=${QATTN_SANITIZE}>
    $<BUILD_INTERFACE:-fno-sanitize-recover=all> $<BUILD_INTERFACE:-fno-omit-frame-pointer>)
  # Tests that repeat one thing over many inputs take fewer of them under a sanitizer.
  target_compile_definitions(qattn_flags INTERFACE $<BUILD_INTERFACE:QATTN_SANITIZED>)
  target_link_options(qattn_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=${QATTN_SANITIZE}>)
endif()

# qattn_room(<name> SOURCES ... [DEPENDS <rooms>] [LIBRARIES <public>] [PRIVATE_LIBRARIES <private>])
# declares the library qattn_<name> (alias qattn::<name>) from the calling folder; its headers are included as
# "<room>/<file>.h".
function(qattn_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  add_library(qattn_${name} STATIC ${ROOM_SOURCES})
  add_library(qattn::${name} ALIAS qattn_${name})
  set_target_properties(qattn_${name} PROPERTIES EXPORT_NAME ${name})
  get_filename_component(floor ${CMAKE_CURRENT_SOURCE_DIR} DIRECTORY)
  target_include_directories(qattn_${name} PUBLIC $<BUILD_INTERFACE:${floor}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/qattn>)
  set(rooms ${ROOM_DEPENDS})
  list(TRANSFORM rooms PREPEND qattn_)
  target_link_libraries(qattn_${name} PUBLIC ${rooms} ${ROOM_LIBRARIES} PRIVATE ${ROOM_PRIVATE_LIBRARIES})
  target_link_libraries(qattn_${name} PUBLIC qattn_flags)
  set_property(GLOBAL APPEND PROPERTY QATTN_ROOMS ${name})
endfunction()

# qattn_test(<name> SOURCES ... [ROOMS <rooms>] [LIBRARIES ...]) builds the Catch2 program test_<name> and registers
# its test cases with ctest. Test cases tagged [.exhaustive] are registered under the label "exhaustive". A name that
# ctest mangles (brackets, semicolons) would run nothing: Catch2 2 is told to fail then, as Catch2 3 does by itself.
function(qattn_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;ROOMS;LIBRARIES" ${ARGN})
  add_executable(test_${name} ${TEST_SOURCES})
  set(rooms ${TEST_ROOMS})
  list(TRANSFORM rooms PREPEND qattn_)
  target_link_libraries(test_${name} PRIVATE ${rooms} ${TEST_LIBRARIES} qattn_test_support qattn_flags)
  target_compile_definitions(test_${name} PRIVATE QATTN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set(no_tests_fail)
  if(Catch2_VERSION VERSION_LESS 3)
    set(no_tests_fail EXTRA_ARGS -w NoTests)
  endif()
  catch_discover_tests(test_${name} TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST ${no_tests_fail})
  add_test(NAME "${name} exhaustive" COMMAND test_${name} "[exhaustive]")
  set_tests_properties("${name} exhaustive" PROPERTIES LABELS exhaustive TIMEOUT 7200)
endfunction()
