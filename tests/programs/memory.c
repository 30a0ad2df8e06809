/* How much memory a program has and may have, as the first argument selects. Figures are written
 * to the file MEMORY_FILE, if that is set.
 * size           1,000 pairs; prints the size of the address space in KiB
 * limits MIB     limits its address space, then allocates 100 blocks of 1 MiB, which it touches,
 *                then starts 8 threads
 * near KIB       allocates from 60,000 stacks after it has limited its address space to KIB more than
 *                it uses, and then seven eighths of KIB; prints how many of 7 blocks it got
 * crowded MIB    limits its address space to MIB more than it uses, then has a thread that allocates
 *                from 131,072 stacks beside 20 short ones, one after the other, of 1,000 pairs each;
 *                prints how many of those it could start
 * limited FILE   makes FILE, waits until it is removed, then allocates 100 blocks of 1 MiB; the
 *                limit is set from outside
 * locks KIB      as an ordinary user with this limit on locked memory, locks all memory, then all
 *                future memory, then allocates, with 4 threads
 * churn N        N threads one after the other, which allocate once; prints resident memory in KiB
 * threads N P    N threads that are alive at the same time, each with P pairs; prints resident
 *                memory in KiB */
#include "own.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
static pthread_barrier_t meeting;
static unsigned long pairs = 1000;
static void figure(const char *name) {
    char text[4096];
    const char *path = getenv("MEMORY_FILE");
    if (!path) return;
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    text[n > 0 ? n : 0] = 0;
    char *at = strstr(text, name);
    must(at != 0, "a figure");
    at += strlen(name);
    while (*at == ':' || *at == ' ' || *at == '\t') at++;
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    must(write(file, at, strspn(at, "0123456789")) > 0, "a figure written");
    close(file);
}
/* Returns the size of the address space. */
static size_t used_bytes(void) {
    char text[64] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    must(read(file, text, sizeof text - 1) > 0, "statm");
    close(file);
    return strtoul(text, 0, 10) * (size_t)sysconf(_SC_PAGESIZE);
}
/* A pair of events from one of 65,536 stacks. */
static volatile int deep;
__attribute__((noinline)) static void branch(unsigned bits, int depth) {
    if (!depth) {
        void *volatile block = malloc(24);
        free(block);
    } else if (bits & 1) {
        branch(bits >> 1, depth - 1);
        deep = 1;
    } else {
        branch(bits >> 1, depth - 1);
        deep = 2;
    }
}
static volatile int is_over;
static void *branches(void *v) {
    for (unsigned i = 0; !is_over; i++) branch(i, 17);
    return v;
}
static void *shortly(void *v) {
    for (unsigned long i = 0; i < 1000; i++) free(malloc(40));
    return v;
}
/* A stack of 64 KiB, or of the least that a thread has on this machine. */
static void small_stack(pthread_attr_t *attr) {
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    pthread_attr_init(attr);
    must(!pthread_attr_setstacksize(attr, least > 65536 ? least : 65536), "a small stack");
}
static int crowd(void) {
    pthread_t busy, id;
    pthread_attr_t attr;
    int started = 0;
    small_stack(&attr);
    must(!pthread_create(&busy, &attr, branches, 0), "a thread");
    for (unsigned k = 0; k < 20; k++) {
        for (unsigned i = 0; i < 3000; i++) branch(i * 7919 + k, 17);
        if (pthread_create(&id, &attr, shortly, 0)) continue;
        started++;
        pthread_join(id, 0);
    }
    is_over = 1;
    pthread_join(busy, 0);
    return started;
}
static void *work(void *v) {
    for (unsigned long i = 0; i < pairs; i++) free(malloc(24));
    pthread_barrier_wait(&meeting);
    pthread_barrier_wait(&meeting);
    return v;
}
static void threads(unsigned long count) {
    static pthread_t id[1000];
    pthread_attr_t attr;
    small_stack(&attr);
    pthread_barrier_init(&meeting, 0, count + 1);
    for (unsigned long i = 0; i < count; i++) must(!pthread_create(&id[i], &attr, work, 0), "a thread");
    pthread_barrier_wait(&meeting);
    figure("VmRSS");
    pthread_barrier_wait(&meeting);
    for (unsigned long i = 0; i < count; i++) pthread_join(id[i], 0);
}
static void *one(void *v) { free(malloc(24)); return v; }
static void churn(unsigned long count) {
    pthread_t id;
    for (unsigned long i = 0; i < count; i++) {
        must(!pthread_create(&id, 0, one, 0), "a thread");
        pthread_join(id, 0);
    }
    figure("VmRSS");
}
static void blocks(void) {
    int count = 0;
    for (int i = 0; i < 100; i++) {
        char *p = malloc(1 << 20);
        if (p) { memset(p, 1, 1 << 20); count++; }
    }
    say("%d blocks\n", count);
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    unsigned long amount = !strcmp(how, "limited") ? 0 : number(argc, argv, 2, 0);
    for (int i = 0; i < 1000; i++) free(malloc(24));
    if (!strcmp(how, "churn")) {
        churn(amount);
        say("%lu threads\n", amount);
    } else if (!strcmp(how, "size")) {
        figure("VmSize");
    } else if (!strcmp(how, "near")) {
        size_t room = strtoul(argv[2], 0, 10) << 10;
        struct rlimit limit = {used_bytes() + room, RLIM_INFINITY};
        must(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
        for (unsigned i = 0; i < 60000; i++) branch(i, 16);
        int blocks = 0;
        while (blocks < 7 && mmap(0, room / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) blocks++;
        char text[] = {(char)('0' + blocks), '\n'};
        must(write(1, text, 2) == 2, "write");
    } else if (!strcmp(how, "crowded")) {
        struct rlimit limit = {used_bytes() + (amount << 20), RLIM_INFINITY};
        must(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
        say("%d threads\n", crowd());
    } else if (!strcmp(how, "limits")) {
        struct rlimit limit = { amount << 20, amount << 20 };
        must(!setrlimit(RLIMIT_AS, &limit), "a limit");
        blocks();
        threads(8);
    } else if (!strcmp(how, "limited")) {
        close(open(argv[2], O_CREAT | O_WRONLY, 0666));
        while (!access(argv[2], F_OK)) usleep(1000);
        blocks();
    } else if (!strcmp(how, "locks")) {
        struct rlimit limit = { amount << 10, amount << 10 };
        must(!setrlimit(RLIMIT_MEMLOCK, &limit), "a limit");
        if (!geteuid()) must(!setresuid(65534, 65534, 65534), "another user");
        int result = mlockall(MCL_CURRENT);
        say("now: %d %s\n", result, result ? strerror(errno) : "");
        munlockall();
        result = mlockall(MCL_CURRENT | MCL_FUTURE);
        say("now and later: %d %s\n", result, result ? strerror(errno) : "");
        free(malloc(100000));
        threads(4);
        /* The program may use its whole limit on locked memory. */
        char *rest = mmap(0, amount << 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        say("a quarter of the limit: %s\n", rest == MAP_FAILED ? "no" : "yes");
    } else if (!strcmp(how, "threads")) {
        pairs = number(argc, argv, 3, 1000);
        threads(amount);
        say("%lu threads\n", amount);
    }
    return 0;
}
