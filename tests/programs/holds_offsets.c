/* Blocks that only offsets lead to: 5 from the start of the block with the word, as fontconfig's, and LINKS (40)
 * from the word itself, as those of boost::interprocess. And 40 lost ones, each behind a block that
 * has the distance to it by chance: its size; and MORE (0) others. */
#include "own.h"
struct pattern { long count, elements; };
struct pattern *patterns[5];
long **links, *sizes[40];
static long distance(const void *from, const void *to) { return (const char *)to - (const char *)from; }
NOINLINE static void of_start(int i) {
    patterns[i] = malloc(sizeof(struct pattern));
    patterns[i]->elements = distance(patterns[i], malloc(500 + 16 * i));
    KEEP_FRAME();
}
NOINLINE static void of_word(int i) {
    links[i][1] = distance(&links[i][1], malloc(100 + 48 * (i % 7)));
    KEEP_FRAME();
}
NOINLINE static void of_nothing(int i) {
    sizes[i] = malloc(24);
    char *lost = malloc(24);
    sizes[i][1] = distance(sizes[i], lost);
    KEEP_FRAME();
}
NOINLINE static void of_more(void) {
    char *volatile lost = malloc(40);
    lost = 0;
    KEEP_FRAME();
}
int main(int argc, char **argv) {
    unsigned long count = number(argc, argv, 1, 40), more = number(argc, argv, 2, 0);
    links = calloc(count, sizeof *links);
    for (int i = 0; i < 5; i++) of_start(i);
    for (unsigned long i = 0; i < count; i++) links[i] = calloc(1, 24);
    for (unsigned long i = 0; i < count; i++) of_word(i);
    for (int i = 0; i < 40; i++) of_nothing(i);
    while (more--) of_more();
    /* No old word of a stack or a register leads to them. */
    for (int i = 0; i < 100; i++) free(malloc(40000));
    usleep(100000);
    say("done\n");
    return 0;
}
