# What `cmake --install` puts under the prefix: the program, every room's library and headers, the CMake package with
# which others use them (find_package(qattn), then qattn::format, qattn::attention, ...), and the data.
include(CMakePackageConfigHelpers)

get_property(qattn_rooms GLOBAL PROPERTY QATTN_ROOMS)
set(qattn_package ${CMAKE_INSTALL_LIBDIR}/cmake/qattn)

set(qattn_targets qattn_flags qattn_hdf5)
foreach(room IN LISTS qattn_rooms)
  list(APPEND qattn_targets qattn_${room})
  get_target_property(folder qattn_${room} SOURCE_DIR)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qattn/${room} FILES_MATCHING PATTERN "*.h")
endforeach()
set_target_properties(qattn_flags PROPERTIES EXPORT_NAME flags)
set_target_properties(qattn_hdf5 PROPERTIES EXPORT_NAME hdf5)
install(TARGETS ${qattn_targets} EXPORT qattn ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT qattn NAMESPACE qattn:: FILE qattnTargets.cmake DESTINATION ${qattn_package})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/qattnConfig.cmake.in ${CMAKE_BINARY_DIR}/qattnConfig.cmake
  INSTALL_DESTINATION ${qattn_package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/qattnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/qattnConfig.cmake ${CMAKE_BINARY_DIR}/qattnConfigVersion.cmake
  DESTINATION ${qattn_package})

install(TARGETS qattn RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/qattn)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
