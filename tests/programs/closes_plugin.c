/* Opens and closes a library (the second argument), as the first argument selects:
 * many       after 2^18 stacks, 100 times: the median close takes less than a millisecond
 * jump       a destructor of the library is left by a jump
 * fork       another thread forks while the destructors run
 * Afterwards events must cost what they did before, within a factor that excludes the slow path.
 * Prints "fast", or what was slow. */
#include "own.h"
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <time.h>
NOINLINE static void branch(unsigned left);
NOINLINE static void one(unsigned left) { branch(left); KEEP_FRAME(); }
NOINLINE static void other(unsigned left) { branch(left); KEEP_FRAME(); }
NOINLINE static void branch(unsigned left) {
    if (!left) { free(malloc(17)); return; }
    one(left - 1);
    other(left - 1);
    KEEP_FRAME();
}
NOINLINE static void deep(unsigned left) {
    if (left) deep(left - 1);
    else for (int i = 0; i < 10000; i++) free(malloc(19));
    KEEP_FRAME();
}
static double now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
/* The fastest of some rounds: others may have the CPU, and a thread waits for a full ring. */
static double events(void) {
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        usleep(100000);
        double start = now(CLOCK_THREAD_CPUTIME_ID);
        deep(20);
        double took = now(CLOCK_THREAD_CPUTIME_ID) - start;
        if (took < best) best = took;
    }
    return best;
}
static const char *path;
static void *opened(void (*at_end)(void)) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    must(library != 0, dlerror());
    ((void (*)(void))dlsym(library, "plugin_uses"))();
    *(void (**)(void))dlsym(library, "plugin_at_end") = at_end;
    return library;
}
static jmp_buf out;
static void jumps(void) { longjmp(out, 1); }
static volatile int at_end, may_end;
static void waits(void) { at_end = 1; while (!may_end) usleep(100); }
static void *closes(void *library) { dlclose(library); return 0; }
static int less(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }
int main(int argc, char **argv) {
    must(argc > 2, "how, and a library");
    path = argv[2];
    int is_slow = 0;
    double before = events();
    if (!strcmp(argv[1], "many")) {
        branch(18);
        double took[100];
        for (int i = 0; i < 100; i++) {
            void *library = opened(0);
            double start = now(CLOCK_THREAD_CPUTIME_ID);
            dlclose(library);
            took[i] = now(CLOCK_THREAD_CPUTIME_ID) - start;
        }
        qsort(took, 100, sizeof *took, less);
        is_slow = took[50] > 1e-3;
        if (is_slow) dprintf(2, "a close takes %f s\n", took[50]);
    } else if (!strcmp(argv[1], "jump")) {
        void *library = opened(jumps);
        if (!setjmp(out)) dlclose(library);
    } else {
        pthread_t id;
        must(!pthread_create(&id, 0, closes, opened(waits)), "a thread");
        while (!at_end) usleep(100);
        pid_t pid = fork();
        int status;
        if (!pid) _exit(events() > 8 * before);
        must(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "the child lives");
        is_slow = WEXITSTATUS(status);
        may_end = 1;
        pthread_join(id, 0);
    }
    double after = events();
    if (after > 8 * before) { dprintf(2, "%f s before, %f s after\n", before, after); is_slow = 1; }
    say("%s\n", is_slow ? "slow" : "fast");
    _exit(0);
}
