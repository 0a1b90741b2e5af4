#include "exact.h"
#include "foreword.h"

/* Cosines and sines of angles, the same bits on every processor. */
void foreword_turns(const float *angle, float *cos, float *sin, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double c, s;
        turn(angle[i], &c, &s);
        cos[i] = (float)c;
        sin[i] = (float)s;
    }
}
