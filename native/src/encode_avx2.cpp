#define KVASSAY_ISA avx2
#include "encode_rows.h"
