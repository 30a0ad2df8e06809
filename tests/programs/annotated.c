/* Reports to heaptape.h what it does; tests/pipeline/annotated.rs knows all counts. */
#include "../../preload/include/heaptape.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An arena that hands out parts of one block. */
static char *arena;
static size_t used;

__attribute__((noinline)) static void *arena_alloc(const char *heap, size_t size)
{
    void *block = arena + used;
    used += (size + 7) & ~(size_t)7;
    heaptape_alloc(heap, block, size);
    return block;
}

static void *keep[16];

__attribute__((noinline)) static void take(int index, size_t size)
{
    keep[index] = malloc(size);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "all";
    int is_all = !strcmp(what, "all");
    arena = malloc(1 << 20);
    heaptape_pool(arena);
    /* 3 rounds of 100 blocks of 24 bytes, the last of which stay. */
    for (int round = 0; is_all && round < 3; round++) {
        heaptape_mark(round == 0 ? "first round" : round == 1 ? "second round" : "third round");
        if (round)
            heaptape_reset("scratch");
        used = 0;
        for (int block = 0; block < 100; block++)
            arena_alloc("scratch", 24);
    }
    heaptape_mark("rounds done");
    /* 8 blocks of 100 bytes of another heap: one is free, one is larger, 3 are in a free range. */
    char *first = 0, *blocks[8];
    for (int block = 0; block < 8; block++)
        blocks[block] = arena_alloc("named", 100);
    first = blocks[0];
    heaptape_free(blocks[7]);
    heaptape_realloc("named", blocks[6], blocks[6], 104);
    heaptape_free_range(first + 104, 3 * 104);
    /* Labels: one inside another. */
    take(0, 1001);
    heaptape_label_push("request");
    take(1, 1002);
    heaptape_label_push("an inner label with a text of more than fifteen bytes");
    take(2, 1003);
    arena_alloc("named", 50);
    heaptape_label_pop();
    take(3, 1004);
    heaptape_label_pop();
    heaptape_label_pop();
    take(4, 1005);
    /* What happens while the recording is stopped is not recorded. */
    heaptape_stop();
    take(5, 1006);
    free(keep[5]);
    heaptape_start();
    take(6, 1007);
    heaptape_mark("the end");
    if (count > 2) {
        /* The blocks in the pool go with it. */
        free(arena);
    }
    return 0;
}
