# One translation unit an instruction set; which one runs is decided by the processor.
# kvassay_instruction_sets(TARGET FOLDER): adds those of the processor that is compiled for, with their options.
# encode_*.cpp: codes must be those of the torch twin, so no product and sum become one operation.
function(kvassay_instruction_sets TARGET FOLDER)
  target_sources(${TARGET} PRIVATE ${FOLDER}/isa_generic.cpp ${FOLDER}/encode_generic.cpp)
  set_source_files_properties(${FOLDER}/isa_generic.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS}")
  set_source_files_properties(${FOLDER}/encode_generic.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};-ffp-contract=off")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    target_sources(${TARGET} PRIVATE ${FOLDER}/isa_avx2.cpp ${FOLDER}/isa_avx512.cpp ${FOLDER}/encode_avx2.cpp
      ${FOLDER}/encode_avx512.cpp)
    set(AVX2 -mavx2 -mfma -mf16c)
    # GCC 12 warns of variables that its own header of intrinsics leaves undefined on purpose (its bug 105593).
    set(AVX512 ${AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND AVX512 -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    set_source_files_properties(${FOLDER}/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};${AVX2}")
    set_source_files_properties(${FOLDER}/isa_avx512.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};${AVX512}")
    set_source_files_properties(${FOLDER}/encode_avx2.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};${AVX2};-ffp-contract=off")
    set_source_files_properties(${FOLDER}/encode_avx512.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};${AVX512};-ffp-contract=off")
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
    target_sources(${TARGET} PRIVATE ${FOLDER}/isa_neon.cpp ${FOLDER}/isa_neon_dot.cpp)
    set_source_files_properties(${FOLDER}/isa_neon.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS}")
    set_source_files_properties(${FOLDER}/isa_neon_dot.cpp PROPERTIES COMPILE_OPTIONS "${WARNINGS};-march=armv8.2-a+dotprod")
  endif()
endfunction()
