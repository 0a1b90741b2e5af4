/* What test_registers.py compiles: functions that multiply, and nothing else of the forward. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include <sampling.c>
#include <threads.c>
#include <model.c>
#include <math.c>
#include <panel.c>
#include <products.c>

void *const kept[] = {tiled, byte_coded, strip_sums};
