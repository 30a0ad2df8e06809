/* Forks GENERATIONS (40), each the child of the one before it. Each one allocates, in THREADS (0)
 * threads besides, and has the whole chain after it to wait for. The last one says whether its address
 * space is larger than that of the second one by a MiB or more. */
#include "own.h"
#include <pthread.h>
#include <sys/wait.h>
static unsigned long pages(void) {
    char text[100] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    must(file && fgets(text, sizeof text, file), "statm");
    fclose(file);
    return strtoul(text, 0, 10);
}
static void *thread(void *unused) { for (int i = 0; i < 100; i++) free(malloc(30)); return unused; }
int main(int argc, char **argv) {
    unsigned long last = number(argc, argv, 1, 40), threads = number(argc, argv, 2, 0), second = 0;
    for (unsigned long generation = 0; generation < last; generation++) {
        must(malloc(401) != 0, "a block");
        for (unsigned long i = 0; i < threads; i++) {
            pthread_t id;
            must(!pthread_create(&id, 0, thread, 0) && !pthread_join(id, 0), "a thread");
        }
        if (generation == 1) second = pages();
        pid_t pid = fork();
        must(pid >= 0, "a child");
        if (pid) {
            int status;
            must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the next generation");
            return 0;
        }
    }
    must(malloc(401) != 0, "a block");
    long grown = (long)(pages() - second);
    say("%s\n", grown < 256 ? "less than 1 MiB" : "1 MiB or more");
    if (grown >= 256) fprintf(stderr, "%ld KiB\n", grown * 4);
    return 0;
}
