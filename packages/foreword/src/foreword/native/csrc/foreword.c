/* The library of the forward: all files, seen by the compiler as one, so that it inlines across
 * them. */
#define _GNU_SOURCE /* O_DIRECT */
#define FOREWORD_IN_ONE

#include "angles.c"
#include "layout.c"

#include "products/amx.c"
#include "products/encode.c"
#include "products/group_rows.c"
#include "products/groups.c"
#include "products/groups_amx.c"
#include "products/int8.c"
#include "products/peaks.c"
#include "products/product.c"
#include "products/strips.c"
#include "products/whole.c"

#include "attention/amx_attention.c"
#include "attention/attention.c"
#include "attention/kv.c"
#include "attention/vectors.c"
#include "attention/weights.c"

#include "layers/experts.c"
#include "layers/layer.c"
#include "layers/low_rank.c"
#include "layers/norms.c"
#include "layers/recurrent.c"
#include "layers/rows.c"

#include "stream.c"

#include "forward.c"
#include "tree.c"
