/* Code without unwind data, COUNT times (the second argument; 1): a block of 809 bytes is allocated
 * and freed each time, and one is never freed.
 * chain     three functions call each other; the program is built without unwind tables
 * garbage   made code has a frame pointer that points to other words each time: to an address of
 *           the heap, of the stack, of data, of a function's start, to nothing
 * frames    made code keeps frame pointers
 * copies    as frames, by 4,096 functions of the same shape, as compilers at run time make them
 * skip      as chain, and only the outermost of the three keeps a frame pointer */
#include "own.h"
#include <alloca.h>

NOINLINE static void *inner(size_t size) {
    void *p = malloc(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void *middle(size_t size) {
    void *p = inner(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void *outer(size_t size) {
    void *p = middle(size);
    KEEP_FRAME();
    return p;
}

/* A frame of a size that is not known needs a frame pointer. */
NOINLINE static void *keeps_pointer(size_t size) {
    volatile char *room = alloca(size % 100 + 1);
    room[0] = 1;
    void *p = middle(size);
    KEEP_FRAME();
    return p;
}

typedef void *made(size_t size, uintptr_t frame_pointer);
enum { COPIES = 4096, STRIDE = 64 };
static made *make(int keeps_frames) {
    /* push rbp; mov rbp, rsi or rsp; mov rax, inner; call rax; pop rbp; ret */
    unsigned char code[] = { 0x55, 0x48, 0x89, 0xf5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3 };
    uintptr_t target = (uintptr_t)inner;
    memcpy(code + 6, &target, sizeof target);
    if (keeps_frames) code[3] = 0xe5;
    char *p = mmap(0, COPIES * STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(p != MAP_FAILED, "memory for code");
    for (int i = 0; i < COPIES; i++) memcpy(p + i * STRIDE, code, sizeof code);
    must(!mprotect(p, COPIES * STRIDE, PROT_READ | PROT_EXEC), "code");
    return (made *)p;
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "chain";
    unsigned long count = number(argc, argv, 2, 1);
    must(count > 0, "a count");
    static uintptr_t data[64];
    int skips = !strcmp(how, "skip"), copies = !strcmp(how, "copies");
    made *first = skips || !strcmp(how, "chain") ? 0 : make(copies || !strcmp(how, "frames"));
    char *heap = malloc(1 << 20);
    for (unsigned long i = 0; i <= count; i++) {
        uintptr_t words[2] = { (uintptr_t)&words, 0 };
        switch (i % 5) {
        case 0: words[1] = (uintptr_t)heap + i % 1000 * 1024 + 5; break;
        case 1: words[1] = (uintptr_t)&words + i % 7; break;
        case 2: words[1] = (uintptr_t)data + i % 64; break;
        case 3: words[1] = (uintptr_t)outer; break;
        default: words[1] = i * 4099; break;
        }
        __asm__ volatile("" ::"r"(words) : "memory");
        made *function = copies ? (made *)((char *)first + i * 7 % COPIES * STRIDE) : first;
        void *p = function ? function(809, (uintptr_t)words) : skips ? keeps_pointer(809) : outer(809);
        if (i < count) free(p);
    }
    say("done\n");
    free(heap);
    return 0;
}
