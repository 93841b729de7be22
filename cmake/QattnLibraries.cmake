# Every library the house stands on, from the system's packages; nothing is downloaded.
find_package(Eigen3 3.3 REQUIRED NO_MODULE)
find_package(Boost 1.74 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(tomlplusplus 3 REQUIRED)
find_package(TBB 2021 REQUIRED)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(ZLIB REQUIRED)
find_package(Threads REQUIRED)

# hwy ships a pkg-config file only.
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)

add_library(qattn_hdf5 INTERFACE)
target_include_directories(qattn_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(qattn_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
target_compile_definitions(qattn_hdf5 INTERFACE ${HDF5_DEFINITIONS})
