/* Processes that cannot be attached, which say "ready" and go on until their standard input ends:
 * shares      beside a child that has the same memory and allocates
 * dispatches  with Syscall User Dispatch, which lets only libc's code and this program make system calls */
#define _GNU_SOURCE
#include "own.h"
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static char stack[1 << 16];
static volatile int is_over, rounds;

static int work(void *unused) {
    while (!is_over) { free(malloc(100)); rounds++; }
    return unused != 0;
}
static int widen(struct dl_phdr_info *object, size_t size, void *range) {
    (void)size;
    size_t *ends = range;
    /* From the lowest object of all, this program or a library, to libc's end. */
    for (int row = 0; row < object->dlpi_phnum; row++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[row];
        size_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && strstr(object->dlpi_name, "libc.so")) {
            if (!ends[0] || start < ends[0]) ends[0] = start;
            if (start + segment->p_memsz > ends[1]) ends[1] = start + segment->p_memsz;
        }
    }
    return 0;
}
int main(int argc, char **argv) {
    char byte;
    pid_t child = 0;
    must(argc > 1, "a mode");
    free(malloc(1));
    if (!strcmp(argv[1], "shares")) {
        child = clone(work, stack + sizeof stack, CLONE_VM | SIGCHLD, 0);
        must(child > 0, "clone");
    } else {
        static char selector = 1; /* SYSCALL_DISPATCH_FILTER_BLOCK */
        size_t ends[2] = { 0, 0 };
        dl_iterate_phdr(widen, ends);
        must(ends[1], "libc");
        if (prctl(59, 1, ends[0], ends[1] - ends[0], &selector)) { say("none\n"); return 0; }
    }
    say("ready\n");
    while (read(0, &byte, 1) > 0) free(malloc(10));
    is_over = 1;
    must(!child || waitpid(child, 0, 0) == child, "the child ends");
    say("done\n");
    return 0;
}
