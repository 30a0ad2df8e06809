/* A library that does one kind of harm, selected by HEAPTAPE_PLANTED, to the program into which
 * it is preloaded. harm_steps must detect each kind. */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
static const char *kind = "";
static void *(*next)(size_t);
static int is_planted(const char *name) { return strcmp(kind, name) == 0; }
static void handler(int signal) { (void)signal; }
__attribute__((constructor)) static void plant(void) {
    const char *asked = getenv("HEAPTAPE_PLANTED");
    kind = asked ? asked : "";
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    struct rlimit limit;
    struct itimerval timer = { { 0, 0 }, { 1000, 0 } };
    if (is_planted("descriptor")) must(open("/dev/null", O_RDONLY) >= 0, "a descriptor");
    if (is_planted("handler")) signal(SIGPIPE, handler);
    if (is_planted("disposition")) signal(SIGPIPE, SIG_IGN);
    if (is_planted("mask")) sigprocmask(SIG_BLOCK, &set, 0);
    if (is_planted("pending")) { sigprocmask(SIG_BLOCK, &set, 0); raise(SIGUSR2); signal(SIGUSR2, SIG_IGN); sigprocmask(SIG_UNBLOCK, &set, 0); }
    if (is_planted("limit")) { getrlimit(RLIMIT_NOFILE, &limit); limit.rlim_cur = 77; setrlimit(RLIMIT_NOFILE, &limit); }
    if (is_planted("timer")) setitimer(ITIMER_PROF, &timer, 0);
    if (is_planted("mapping")) {
        int file = open("/bin/true", O_RDONLY);
        must(mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED, "a mapping");
        close(file);
    }
    if (is_planted("environment")) setenv("PLANTED", "1", 1);
    if (is_planted("output")) must(write(2, "planted\n", 8) == 8, "a line");
}
void *malloc(size_t size) {
    static __thread unsigned long calls;
    if (!next) next = dlsym(RTLD_NEXT, "malloc");
    void *block = next(size);
    if (is_planted("errno")) errno = 0;
    if (is_planted("flags")) { volatile double third = 3; third = 1 / third; }
    if (is_planted("crash") && ++calls == 500) __builtin_trap();
    return block;
}
void *aligned_alloc(size_t align, size_t size) {
    static void *(*other)(size_t, size_t);
    if (!other) other = dlsym(RTLD_NEXT, "aligned_alloc");
    void *block = other(align, size + 16);
    return is_planted("alignment") && block ? (char *)block + 8 : block;
}
