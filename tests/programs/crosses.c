/* Two allocators: malloc, and one with names of its own that passes every request on. Some blocks
 * are freed, or resized, by the other one than allocated them. With an argument it first writes
 * "ready", and waits for the end of its input. */
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

#define NOT_INLINED __attribute__((noinline, noclone))

struct box { size_t taken; };

NOT_INLINED void *box_take(struct box *box, size_t size) {
    box->taken += size;
    return malloc(size);
}
NOT_INLINED void *box_take_array(struct box *box, size_t count, size_t size) {
    box->taken += count * size;
    return calloc(count, size);
}
NOT_INLINED void *box_grow(struct box *box, void *block, size_t old, size_t size) {
    box->taken += size - old;
    return realloc(block, size);
}
NOT_INLINED int box_put(void **block, size_t alignment, size_t size) {
    return posix_memalign(block, alignment, size);
}
NOT_INLINED void box_drop(struct box *box, void *block, size_t size) {
    box->taken -= size;
    free(block);
}

NOT_INLINED void frees_from_box(struct box *box) {
    for (int i = 0; i < 40; i++) free(box_take(box, 100));
}
NOT_INLINED void drops_from_malloc(struct box *box) {
    for (int i = 0; i < 25; i++) box_drop(box, malloc(64), 64);
}
NOT_INLINED void grows_from_malloc(struct box *box) {
    for (int i = 0; i < 10; i++) box_drop(box, box_grow(box, malloc(50), 50, 70), 70);
}
NOT_INLINED void stays(struct box *box) {
    void *kept = 0;
    for (int i = 0; i < 30; i++) box_drop(box, box_take_array(box, 3, 11), 33);
    for (int i = 0; i < 20; i++) free(malloc(77));
    if (box_put(&kept, 64, 1234)) abort();
    printf("%zu %d\n", box->taken, kept != 0);
}
int main(int argc, char **argv) {
    (void)argv;
    char byte;
    if (argc > 1 && (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 0)) return 1;
    struct box box = { 1 << 20 };
    frees_from_box(&box);
    drops_from_malloc(&box);
    grows_from_malloc(&box);
    stays(&box);
    return 0;
}
