// pairs PAIRS malloc|new|array: allocates and frees small blocks in turn, from one call site, by
// C's functions or C++'s operators.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define NOINLINE __attribute__((noinline, noclone, noipa))

static NOINLINE void *takes_malloc(size_t size) { void *p = malloc(size); __asm__ volatile("" ::: "memory"); return p; }
static NOINLINE void *takes_new(size_t size) { void *p = operator new(size); __asm__ volatile("" ::: "memory"); return p; }
static NOINLINE void *takes_array(size_t size) { void *p = new char[size]; __asm__ volatile("" ::: "memory"); return p; }
static NOINLINE void frees_malloc(void *p) { free(p); __asm__ volatile("" ::: "memory"); }
static NOINLINE void frees_new(void *p) { operator delete(p); __asm__ volatile("" ::: "memory"); }
static NOINLINE void frees_array(void *p) { delete[] static_cast<char *>(p); __asm__ volatile("" ::: "memory"); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    auto takes = !strcmp(argv[2], "malloc") ? takes_malloc : !strcmp(argv[2], "new") ? takes_new : takes_array;
    auto frees = !strcmp(argv[2], "malloc") ? frees_malloc : !strcmp(argv[2], "new") ? frees_new : frees_array;
    void *live[64] = {};
    for (uint64_t i = 0, pairs = strtoull(argv[1], nullptr, 10); i < pairs; i++) {
        frees(live[i % 64]);
        live[i % 64] = takes(16 + i % 7 * 16);
    }
    for (void *p : live) frees(p);
    puts("done");
}
