#define KVASSAY_ISA generic
#include "lanes_generic.h"

#include "encode_rows.h"
