/* COUNT (40) forked children: in each, one thread starts PROGRAM, 0 to 800 microseconds after another
 * one has begun the first request for memory. Their stacks are those of ended threads, so that no
 * thread's start makes one. */
#include "own.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
static volatile int begun;
static unsigned long late;
static char *program;
static unsigned long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ul + time.tv_nsec;
}
static void *starts(void *all) {
    char *words[] = { program, 0 };
    int status;
    pid_t pid;
    (void)all;
    while (!begun) { }
    for (unsigned long end = now() + late; now() < end;) { }
    must(!posix_spawn(&pid, program, 0, 0, words, environ), "a program starts");
    must(waitpid(pid, &status, 0) == pid && status == 0, "it ends well");
    return 0;
}
static void *requests(void *all) {
    begun = 1;
    void *volatile block = malloc(100);
    free(block);
    return all;
}
static void two_threads(int is_child) {
    pthread_t threads[2];
    begun = !is_child;
    must(!pthread_create(&threads[0], 0, is_child ? starts : requests, 0), "a thread");
    must(!pthread_create(&threads[1], 0, requests, 0), "a thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
}
int main(int argc, char **argv) {
    unsigned long count = number(argc, argv, 1, 40);
    program = argc > 2 ? argv[2] : "/bin/true";
    two_threads(0);
    for (unsigned long i = 0; i < count; i++) {
        pid_t child = fork();
        must(child >= 0, "a child");
        if (!child) {
            late = 800000 * i / count;
            two_threads(1);
            _exit(0);
        }
    }
    for (unsigned long i = 0; i < count; i++) {
        int status;
        must(wait(&status) > 0 && status == 0, "it ends well");
    }
    puts("all started");
    return 0;
}
