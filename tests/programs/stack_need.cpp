/* How many bytes of stack each function that heaptape intercepts takes: each is called for the first
 * time on a stack that was filled before, that of a new thread (`thread`) or one that no thread knows
 * (`other`). Prints a line for each: name, bytes. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(bool is_true, const char *what) {
    if (!is_true) { perror(what); exit(2); }
}

enum { SIZE = 256 << 10, FILL = 0xa5 };
static char *memory;
static void *block, *library;
static char *const arguments[] = { (char *)"none", nullptr };

static void reap(pid_t child) {
    if (!child) _exit(0);
    if (child > 0) waitpid(child, nullptr, 0);
}
static void *nothing(void *) { return nullptr; }

static void do_malloc() { block = malloc(1000); }
static void do_calloc() { block = calloc(10, 100); }
static void do_realloc() { block = realloc(block, 3000); }
static void do_free() { free(block); }
static void do_posix_memalign() { if (posix_memalign(&block, 64, 1000)) block = nullptr; }
static void do_aligned_alloc() { block = aligned_alloc(64, 1024); }
static void do_memalign() { block = memalign(64, 1000); }
static void do_valloc() { block = valloc(1000); }
static void do_pvalloc() { block = pvalloc(1000); }
static void do_reallocarray() { block = reallocarray(block, 10, 500); }
static void do_usable_size() { malloc_usable_size(block); }
static void do_new() { block = operator new(500); }
static void do_new_array() { block = operator new[](500); }
static void do_new_aligned() { block = operator new(500, std::align_val_t(64)); }
static void do_delete() { operator delete(block); }
static void do_mmap() { block = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void do_mremap() { block = mremap(block, 8192, 16384, MREMAP_MAYMOVE); }
static void do_mprotect() { mprotect(block, 4096, PROT_READ | PROT_WRITE); }
static void do_munmap() { munmap(block, 8192); }
static void do_fork() { reap(fork()); }
static void do__Fork() { reap(_Fork()); }
static void do_syscall() { reap((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }
static void do_vfork() { reap(vfork()); }
static void do_execve() { execve("/nonexistent/program", arguments, environ); }
static void do_execvp() { execvp("no-such-program-here", arguments); }
static void do_execl() { execl("/nonexistent/program", "a", "b", (char *)nullptr); }
static void do_posix_spawn() { pid_t child = -1; if (!posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ)) reap(child); }
static void do_prctl() { prctl(PR_GET_DUMPABLE); }
static void do_dlclose() { dlclose(library); }
static void do_system() { if (system(":")) {} }
static void do_popen() { FILE *pipe = popen(":", "r"); if (pipe) pclose(pipe); }
static void do_pthread_create() { pthread_t thread; if (!pthread_create(&thread, nullptr, nothing, nullptr)) pthread_join(thread, nullptr); }

static void get() { block = malloc(1000); }
static void map() { block = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void open_library() { library = dlopen("libutil.so.1", RTLD_NOW); }
static void none() {}

static const struct { const char *name; void (*before)(), (*call)(); } calls[] = {
#define CALL(name, before) { #name, before, do_##name },
    CALL(malloc, none) CALL(calloc, none) CALL(realloc, get) CALL(free, get) CALL(posix_memalign, none)
    CALL(aligned_alloc, none) CALL(memalign, none) CALL(valloc, none) CALL(pvalloc, none) CALL(reallocarray, get)
    CALL(usable_size, get) CALL(new, none) CALL(new_array, none) CALL(new_aligned, none) CALL(delete, get)
    CALL(mmap, none) CALL(mremap, map) CALL(mprotect, map) CALL(munmap, map) CALL(fork, none) CALL(_Fork, none)
    CALL(syscall, none) CALL(vfork, none) CALL(execve, none) CALL(execvp, none) CALL(execl, none)
    CALL(posix_spawn, none) CALL(prctl, none) CALL(dlclose, open_library) CALL(system, none) CALL(popen, none)
    CALL(pthread_create, none)
};

/* Fills a stack below an address, and returns how much of it a call has changed. */
static char *top;
static size_t used() {
    char *at = memory;
    while (at < top && *(unsigned char *)at == FILL) at++;
    return (size_t)(top - at);
}
static void *in_thread(void *call) {
    top = (char *)__builtin_frame_address(0) - 512;
    for (volatile char *at = memory; at < top; at++) *at = (char)FILL;
    ((void (*)())call)();
    return (void *)used();
}
static size_t of_thread(void (*call)()) {
    pthread_t thread;
    pthread_attr_t attributes;
    void *found = nullptr;
    pthread_attr_init(&attributes);
    must(!pthread_attr_setstack(&attributes, memory, SIZE), "a stack");
    must(!pthread_create(&thread, &attributes, in_thread, (void *)call), "a thread");
    pthread_join(thread, &found);
    /* The call's own frame begins below 512 bytes, which are not filled. */
    return (size_t)found + 512;
}
static size_t of_other(void (*call)()) {
    top = memory + SIZE;
    memset(memory, FILL, SIZE);
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %0, %%rsp\n\tcall *%1\n\tmov %%rbx, %%rsp"
                     : : "r"(top), "r"(call)
                     : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
    return used();
}
int main(int argc, char **argv) {
    must(argc > 1, "thread or other");
    memory = (char *)mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (auto &one : calls) {
        one.before();
        printf("%s %zu\n", one.name, argv[1][0] == 't' ? of_thread(one.call) : of_other(one.call));
    }
    return 0;
}
