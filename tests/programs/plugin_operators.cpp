// A library with its own operators: its blocks are in an arena, and any other block is detected
// as one of another allocator. NAME is its prefix.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
static char arena[1 << 20] __attribute__((aligned(16)));
static size_t used;
static void *take(size_t size) {
    void *block = arena + used;
    used += (size + 15) / 16 * 16;
    return used <= sizeof arena ? block : nullptr;
}
static void give(void *block) {
    if (block && (static_cast<char *>(block) < arena || static_cast<char *>(block) >= arena + sizeof arena)) {
        fputs("foreign block\n", stderr);
        abort();
    }
}
void *operator new(size_t size) { return take(size); }
void operator delete(void *block) noexcept { give(block); }
void operator delete(void *block, size_t) noexcept { give(block); }
#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
extern "C" __attribute__((noinline)) void *NAMED(NAME, takes)(unsigned size) { return operator new(size); }
extern "C" __attribute__((noinline)) void NAMED(NAME, gives)(void *block) { operator delete(block); }
// The forms with brackets are the run-time's. They jump to the forms above.
extern "C" __attribute__((noinline)) void *NAMED(NAME, takes_many)(unsigned size) { return operator new[](size); }
extern "C" __attribute__((noinline)) void NAMED(NAME, gives_many)(void *block) { operator delete[](block); }
