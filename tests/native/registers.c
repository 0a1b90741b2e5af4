/* What test_registers.py compiles: functions that multiply, and nothing else of the forward. */
#define FOREWORD_IN_ONE

#include <products/amx.c>
#include <products/encode.c>
#include <products/group_rows.c>
#include <products/groups.c>
#include <products/groups_amx.c>
#include <products/int8.c>
#include <products/product.c>
#include <products/whole.c>

const Coding *const kept[] = {&whole_coding, &byte_coding, &group_coding};
