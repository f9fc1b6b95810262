#define KVASSAY_ISA avx512
#include "lanes_avx512.h"

#include "encode_rows.h"
