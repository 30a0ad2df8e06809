/* The heap is fullest at the end, and the program's own mapping is there before. */
#include "own.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
NOINLINE void *load_index(size_t bytes) {
    void *index = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KEEP_FRAME();
    return index;
}
NOINLINE void *load_table(size_t bytes) {
    void *table = malloc(bytes);
    KEEP_FRAME();
    return table;
}
int main(void) {
    void *first = load_table(1 << 20);
    void *index = load_index(64 << 20);
    usleep(20000);
    munmap(index, 64 << 20);
    void *second = load_table(3 << 20);
    usleep(20000);
    free(first);
    free(second);
    return 0;
}
