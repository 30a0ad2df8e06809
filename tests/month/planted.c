/* Services with a planted fault each, by the name under which they are started:
   shopd     two threads that work, one that keeps 1 KB a second, one whose cache fills and then replaces
   prefork   a parent that forks four workers a second, and keeps 256 bytes for each
   dforkd    a daemon by double fork, which keeps 3 KB a second
   renamed   calls itself mailer-worker, and keeps 3 KB a second
   fragd     a thousand small blocks keep the pages of 16 MB of freed ones
   crashd    keeps 250 KB a second and crashes after three */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void **kept;

/* Reachable for ever: each block points to the one before. */
static void keep(void **block, size_t bytes) {
    if (!block) return;
    memset(block, 1, bytes);
    block[0] = kept;
    kept = block;
}

__attribute__((noinline)) void remember_order(void) { keep(malloc(100), 100); }
__attribute__((noinline)) void note_worker(void) { keep(malloc(256), 256); }
__attribute__((noinline)) void keep_reply(void) { keep(malloc(300), 300); }
__attribute__((noinline)) void keep_mail(void) { keep(malloc(300), 300); }
__attribute__((noinline)) void render_invoice(void) { keep(malloc(25000), 25000); }
__attribute__((noinline)) char *make_session(void) { char *block = malloc(160); if (block) *block = 1; return block; }
__attribute__((noinline)) char *cached_page(void) { char *block = malloc(4000); if (block) *block = 1; return block; }

static void *works(void *none) {
    for (;;) {
        void *volatile blocks[16];
        for (int at = 0; at < 16; at++) blocks[at] = malloc(64 + at);
        for (int at = 0; at < 16; at++) free(blocks[at]);
        usleep(4000);
    }
    return none;
}

static void *orders(void *none) {
    for (;;) { remember_order(); usleep(100000); }
    return none;
}

static void *caches(void *none) {
    static char *cache[1000];
    for (unsigned number = 0;; number++) {
        free(cache[number % 1000]);
        cache[number % 1000] = cached_page();
        usleep(20000);
    }
    return none;
}

static void forever(void (*step)(void), unsigned pause) {
    for (;;) { step(); usleep(pause); }
}

static void fork_worker(void) {
    pid_t child = fork();
    if (child == 0) {
        void *volatile work = malloc(2000);
        usleep(100000);
        free(work);
        _exit(0);
    }
    note_worker();
    waitpid(child, 0, 0);
}

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    (void)argc;
    if (!strcmp(name, "shopd")) {
        pthread_t thread;
        for (int number = 0; number < 2; number++) pthread_create(&thread, 0, works, 0);
        pthread_create(&thread, 0, caches, 0);
        orders(0);
    }
    if (!strcmp(name, "prefork")) forever(fork_worker, 150000);
    if (!strcmp(name, "dforkd")) {
        if (fork() || (setsid(), fork())) _exit(0);
        forever(keep_reply, 100000);
    }
    if (!strcmp(name, "renamed")) {
        prctl(PR_SET_NAME, "mailer-worker");
        forever(keep_mail, 100000);
    }
    if (!strcmp(name, "crashd")) {
        for (int turn = 0; turn < 30; turn++, usleep(100000)) render_invoice();
        abort();
    }
    if (!strcmp(name, "fragd")) {
        static char *all[100000], *sessions[1000];
        for (int at = 0; at < 100000; at++) {
            all[at] = malloc(160);
            if (all[at]) memset(all[at], 1, 160);
            if (at % 100 == 0) sessions[at / 100] = make_session();
        }
        for (int at = 0; at < 100000; at++) free(all[at]);
        for (;;) pause();
    }
    return 2;
}
