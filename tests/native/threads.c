/* Prints which chunks three threads get of two phases where one of them is late; test_sharing.py says what they should.
 * One thread plays them all. */
#include <stdio.h>
#include <threads.h>

static void rest(Worker *w, int64_t chunks) {
    for (int64_t chunk; (chunk = claim(w, chunks)) >= 0;) printf("%d ", (int)chunk);
    printf("\n");
}

int main(void) {
    Share share[3] = {0};
    Meeting meeting[2] = {0};
    const int node[] = {0, 3};
    Worker first = {share, meeting, node, 0, 3, 0, 1}, second = first, late = first;
    second.me = 1, late.me = 2;
    rest(&first, 7);
    end_phase(&first, 7);
    rest(&second, 7);
    end_phase(&second, 7);
    for (int turn = 0; turn < 2; turn++) {
        printf("%d ", (int)claim(&second, 4));
        printf("%d ", (int)claim(&first, 4));
    }
    rest(&first, 4);
    rest(&late, 7);
    end_phase(&late, 7);
    rest(&late, 4);
    return 0;
}
