#define KVASSAY_ISA avx2
#include "lanes_avx2.h"

#include "encode_rows.h"
