/* A program that makes code at run time and writes its names to /tmp/perf-PID.map, as JIT
 * compilers do. The function that it makes keeps a frame pointer and calls back a function that
 * allocates.
 * calls     the process calls the code; blocks of 601 bytes
 * forks     its child, which writes no map, calls it too; blocks of 607 bytes
 * waits     calls it, then continues until standard input ends
 * hops      calls a function through code that keeps no frame pointer, as CPython's -X perf has for
 *           each Python function; blocks of 613 bytes
 * enters    calls a function through code that keeps other registers between its frame pointer and
 *           its caller's frame, as the entry of V8 does on aarch64; blocks of 631 bytes
 * kernel    a signal handler allocates 619 bytes when it has interrupted the vDSO */
#include "own.h"
#include <signal.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

typedef void *(*made)(size_t size);

NOINLINE static void *take(size_t size) {
    void *p = malloc(size);
    KEEP_FRAME();
    return p;
}
#ifdef __x86_64__
/* push rbp; mov rbp, rsp; mov rax, take; call rax; pop rbp; ret */
static const unsigned char calls[] = { 0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3 };
#define TARGET 6
/* sub rsp, 8; call rcx; add rsp, 8; ret: without and with endbr64 */
static const unsigned char hop_code[] = { 0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3 };
#define INTERRUPTED(context) (context)->uc_mcontext.gregs[REG_RIP]
#else
/* stp x29, x30, [sp, #-16]!; mov x29, sp; ldr x1, take; blr x1; ldp x29, x30, [sp], #16; ret; take */
static const unsigned calls[] = { 0xa9bf7bfd, 0x910003fd, 0x58000081, 0xd63f0020, 0xa8c17bfd, 0xd65f03c0, 0, 0 };
#define TARGET 24
/* sub sp, sp, #64; stp x29, x30, [sp, #-16]!; mov x29, sp; blr x1; ldp x29, x30, [sp], #16; add sp, sp, #64; ret */
static const unsigned entry_code[] = { 0xd10103ff, 0xa9bf7bfd, 0x910003fd, 0xd63f0020, 0xa8c17bfd, 0x910103ff, 0xd65f03c0 };
/* stp x29, x30, [sp, #-16]!; mov x29, sp; blr x3; ldp x29, x30, [sp], #16; ret: without and with bti c */
static const unsigned hop_code[] = { 0xd503245f, 0xa9bf7bfd, 0x910003fd, 0xd63f0060, 0xa8c17bfd, 0xd65f03c0 };
#define INTERRUPTED(context) (context)->uc_mcontext.pc
#endif
static char *page_for_code(void) {
    void *p = mmap(0, sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(p != MAP_FAILED, "memory for code");
    return p;
}
static void make_executable(char *page) {
    must(!mprotect(page, sysconf(_SC_PAGESIZE), PROT_READ | PROT_EXEC), "code");
    __builtin___clear_cache(page, page + 128);
}
static made make(void) {
    char *p = page_for_code();
    uintptr_t target = (uintptr_t)take;
    memcpy(p, calls, sizeof calls);
    memcpy(p + TARGET, &target, sizeof target);
    make_executable(p);
    return (made)p;
}
static int map;
static void name(made function, const char *text) { dprintf(map, "%lx %zx %s\n", (unsigned long)function, sizeof calls, text); }

typedef void *(*hop)(void *unused, size_t size, void *other, void *(*next)(void *, size_t));
NOINLINE static void *through_first(void *unused, size_t size) { (void)unused; void *p = take(size); KEEP_FRAME(); return p; }
static hop hops[2];
NOINLINE static void *through_second(void *unused, size_t size) { (void)unused; void *p = hops[0](0, size, 0, through_first); KEEP_FRAME(); return p; }
NOINLINE static void *through_third(void *unused, size_t size) { (void)unused; void *p = hops[1](0, size, 0, through_second); KEEP_FRAME(); return p; }
static void make_hops(void) {
    char *p = page_for_code();
    memcpy(p, (const char *)hop_code + 4, sizeof hop_code - 4);
    memcpy(p + 32, hop_code, sizeof hop_code);
    make_executable(p);
    for (int i = 0; i < 2; i++) {
        hops[i] = (hop)(p + 32 * i);
        dprintf(map, "%lx 20 py::%s:/srv/shop.py\n", (unsigned long)hops[i], i ? "load_orders" : "load_order");
    }
}

#ifdef __aarch64__
/* V8 is built with frame pointers. */
NOINLINE __attribute__((optimize("no-omit-frame-pointer"))) static void *through_entry(size_t size) {
    char *p = page_for_code();
    memcpy(p, entry_code, sizeof entry_code);
    make_executable(p);
    void *block = ((void *(*)(size_t, made))p)(size, take);
    KEEP_FRAME();
    return block;
}
#endif

static volatile uintptr_t kernel_start, kernel_end;
static volatile int seen;
static void *volatile kept;
static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uintptr_t at = INTERRUPTED((ucontext_t *)context);
    if (seen || at < kernel_start || at >= kernel_end) return;
    kept = malloc(619);
    seen = 1;
}
NOINLINE static void interrupt_the_kernel_s_code(void) {
    kernel_start = getauxval(AT_SYSINFO_EHDR);
    kernel_end = kernel_start + 8192;
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, 0);
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now); while (!seen && now.tv_sec < start.tv_sec + 20);
    setitimer(ITIMER_REAL, &never, 0);
    must(seen, "a signal in the vDSO");
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "calls";
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    if (!strcmp(how, "kernel")) {
        interrupt_the_kernel_s_code();
        return say("done\n"), 0;
    }
    map = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(map >= 0, "a map");
    made function = make();
    name(function, "JS:~load_orders /srv/shop.js:12:3");
    name(function, "JS:*load_orders /srv/shop.js:12:3");
    if (!strcmp(how, "hops")) {
        make_hops();
        through_third(0, 613);
#ifdef __aarch64__
    } else if (!strcmp(how, "enters")) {
        through_entry(631);
#endif
    } else if (!strcmp(how, "forks")) {
        pid_t pid = fork();
        if (!pid) _exit(function(607) ? 0 : 1);
        int status;
        must(waitpid(pid, &status, 0) == pid && status == 0, "the child");
    } else {
        function(601);
    }
    say("done\n");
    char byte;
    if (!strcmp(how, "waits")) while (read(0, &byte, 1) > 0) ;
    return 0;
}
