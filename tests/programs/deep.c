/* A recursion of DEPTH frames (100,000) that allocates at the bottom and on the way down. */
#include "own.h"
NOINLINE unsigned long dives(unsigned long depth) {
    void *p = depth % 1000 == 0 ? own_malloc(3301) : 0;
    unsigned long r = depth ? dives(depth - 1) + 1 : 0;
    own_free(p);
    KEEP_FRAME();
    return r;
}
int main(int argc, char **argv) {
    unsigned long depth = number(argc, argv, 1, 100000);
    for (int i = 0; i < 3; i++) must(dives(depth) == depth, "all frames");
    say("%lu\n", depth);
    return 0;
}
