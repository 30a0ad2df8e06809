/* Allocates on stacks that are not the stack of the thread, as the first argument selects:
 * coroutine N     N pairs on the stack of a coroutine, some pages deep, at changing depths,
 *                 alternating with the main stack
 * forked N        N pairs in a child that a thread forked
 * split N         N pairs after a walk through many small stacks, each calling the next
 * interrupts N    N pairs in a handler on the alternate stack, which interrupts 64 calls on the stack of a
 *                 coroutine
 * guess N         N pairs below a function without unwind data that keeps a pointer to data, which
 *                 is unmapped and mapped again, in the frame pointer register */
#include "own.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
static unsigned long pairs, done_pairs;
/* After so many pairs each stack is known; this call marks the place. */
#define KNOWN 200
static ucontext_t back, there;
NOINLINE static void at_depth(unsigned left) {
    volatile char room[100];
    room[0] = 0;
    if (!left && done_pairs == KNOWN) must(write(1, "known\n", 6) == 6, "write");
    if (left) at_depth(left - 1);
    else if (++done_pairs != pairs) free(malloc(811));
    else must(malloc(1709) != 0, "a block that is kept");
    KEEP_FRAME();
}
static void coroutine(void) {
    for (unsigned long i = 0;; i++) {
        at_depth(60 + i % 7);
        if (i % 100 == 0) swapcontext(&there, &back);
    }
}
static void *forks(void *unused) {
    int status;
    pid_t pid = fork();
    if (!pid) {
        for (unsigned long i = 0; i < pairs; i++) at_depth(10 + i % 7);
        _exit(3);
    }
    must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 3, "the child lives");
    return unused;
}
/* Calls a function on another stack. The chain of frame pointers leads back to this one. */
void on_stack(char *top, void (*body)(unsigned), unsigned argument);
__asm__(".globl on_stack\non_stack:\n .cfi_startproc\n push %rbp\n .cfi_def_cfa_offset 16\n .cfi_offset 6, -16\n mov %rsp, %rbp\n"
        " .cfi_def_cfa_register 6\n mov %rdi, %rsp\n mov %edx, %edi\n call *%rsi\n mov %rbp, %rsp\n pop %rbp\n .cfi_def_cfa 7, 8\n ret\n"
        " .cfi_endproc\n");
#define SEGMENTS 200
static char *segments;
static void in_segment(unsigned left) {
    if (left) on_stack(segments + 8192 * left, in_segment, left - 1);
    else for (unsigned long i = 0; i < pairs; i++) at_depth(2 + i % 3);
    KEEP_FRAME();
}
/* Keeps its argument in the frame pointer register, and has no unwind data. */
void keeps_data(void *data, void (*body)(void));
__asm__(".globl keeps_data\nkeeps_data:\n push %rbp\n mov %rdi, %rbp\n call *%rsi\n pop %rbp\n ret\n");
static char *volatile data;
static volatile int done;
static void *comes_and_goes(void *unused) {
    while (!done) {
        mprotect(data, 4096, PROT_NONE);
        mprotect(data, 4096, PROT_READ | PROT_WRITE);
    }
    return unused;
}
static void handles(int signal) { (void)signal; free(malloc(829)); }
NOINLINE static void calls(unsigned left) {
    if (left) calls(left - 1);
    else for (unsigned long i = 0; i < pairs; i++) raise(SIGUSR1);
    KEEP_FRAME();
}
static void interrupted(void) {
    calls(64);
    swapcontext(&there, &back);
}
NOINLINE static void takes(void) { free(malloc(823)); KEEP_FRAME(); }
static void guessed(void) {
    for (unsigned long i = 0; i < pairs; i++) keeps_data(data + 64, takes);
    swapcontext(&there, &back);
}
static void start(char *stack, size_t size, void (*body)(void)) {
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = size;
    there.uc_link = &back;
    makecontext(&there, body, 0);
}
static char *mapped(size_t size) {
    char *start = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(start != MAP_FAILED, "memory");
    return start;
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    pairs = number(argc, argv, 2, 1000);
    pthread_t id;
    if (!strcmp(how, "coroutine")) {
        start(mapped(1 << 16), 1 << 16, coroutine);
        for (unsigned long i = 0; i <= pairs; i += 100) {
            swapcontext(&back, &there);
            free(malloc(17));
        }
    } else if (!strcmp(how, "forked")) {
        must(!pthread_create(&id, 0, forks, 0) && !pthread_join(id, 0), "a thread");
    } else if (!strcmp(how, "split")) {
        segments = mapped((SEGMENTS + 1) * 8192);
        for (int i = 0; i <= SEGMENTS; i += 1) mprotect(segments + 8192 * i, 4096, PROT_NONE);
        in_segment(SEGMENTS);
    } else if (!strcmp(how, "interrupts")) {
        stack_t stack = { .ss_sp = mapped(1 << 16), .ss_size = 1 << 16 };
        struct sigaction action = { .sa_handler = handles, .sa_flags = SA_ONSTACK };
        must(!sigaltstack(&stack, 0) && !sigaction(SIGUSR1, &action, 0), "a handler");
        start(mapped(1 << 16), 1 << 16, interrupted);
        swapcontext(&back, &there);
    } else if (!strcmp(how, "guess")) {
        char *stack = mapped((1 << 16) + 8192);
        /* An address above the stack, so that an unwinder follows it. */
        data = stack + (1 << 16) + 4096;
        must(!pthread_create(&id, 0, comes_and_goes, 0), "a thread");
        start(stack, 1 << 16, guessed);
        swapcontext(&back, &there);
        done = 1;
        pthread_join(id, 0);
    }
    say("done\n");
    return 0;
}
