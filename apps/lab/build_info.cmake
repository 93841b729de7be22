# Writes build_info.h with the commit of the source tree; run at every build, it changes the file only when the commit
# has changed, so that nothing is rebuilt for nothing.
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse HEAD
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  # A source tree that was unpacked inside another repository is not that repository's commit.
  if(failed EQUAL 0 AND top STREQUAL SOURCE)
    set(commit ${head})
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed ERROR_QUIET)
    if(NOT changed EQUAL 0)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// What was built; written by apps/lab/build_info.cmake.
#pragma once

namespace qattn::lab {

inline constexpr char kVersion[] = "@VERSION@";
inline constexpr char kGitCommit[] = "@commit@";
inline constexpr char kBuildType[] = "@BUILD_TYPE@";

}  // namespace qattn::lab
]])
