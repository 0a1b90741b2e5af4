/* Prints which chunks three threads get of two phases where one of them is late; test_sharing.py says what they should.
 * One thread plays them all. */
#include <stdio.h>
#include <threads.h>

static void rest(Worker *w, int64_t chunks) {
    for (int64_t chunk; (chunk = claim(w, chunks)) >= 0; finished(w)) printf("%d ", (int)chunk);
    printf("\n");
}

int main(void) {
    Share share[3] = {0};
    Phase phase[2] = {0};
    Worker first = {share, phase, 0, 3}, second = {share, phase, 1, 3}, late = {share, phase, 2, 3};
    rest(&first, 7);
    wait(&first, 7);
    rest(&second, 7);
    wait(&second, 7);
    for (int turn = 0; turn < 2; turn++) {
        printf("%d ", (int)claim(&second, 4));
        printf("%d ", (int)claim(&first, 4));
    }
    rest(&first, 4);
    rest(&late, 7);
    wait(&late, 7);
    rest(&late, 4);
    return 0;
}
