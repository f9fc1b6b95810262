#define KVASSAY_ISA generic
#include "encode_rows.h"
