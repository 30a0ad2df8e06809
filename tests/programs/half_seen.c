/* half_seen MIB: an allocator of the program's own takes MIB mebibytes from the kernel, and malloc as
 * much. All of it is written to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOT_INLINED __attribute__((noinline, noclone))

struct arena { char *at; };

NOT_INLINED void *arena_take(struct arena *arena, size_t size) {
    void *block = arena->at;
    arena->at += (size + 15) / 16 * 16;
    return block;
}
int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 1) << 20;
    struct arena arena = { mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };
    if (arena.at == MAP_FAILED) abort();
    for (size_t at = 0; at < bytes; at += 4096) {
        memset(arena_take(&arena, 4096), 1, 4096);
        memset(malloc(4000), 1, 4000);
    }
    sleep(1);
    puts("done");
    return 0;
}
