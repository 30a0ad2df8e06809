/* COUNT forked children (100) have a thread that checks that the lowest free descriptor is always
 * the same, and closes those above. Meanwhile another thread makes its first allocation. With a second
 * argument they stay until their parent ends. */
#include "own.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
static volatile int looking, done;
static void *looks(void *wrong) {
    while (!done) {
        int lowest = dup(0);
        if (lowest != 3 || !close(4)) *(volatile char *)wrong = 1;
        close(lowest);
        looking = 1;
    }
    return 0;
}
static void *allocates(void *unused) {
    free(malloc(100));
    return unused;
}
static int child(int stays) {
    char wrong = 0;
    pthread_t other, third;
    must(!pthread_create(&other, 0, looks, &wrong), "a thread");
    while (!looking) {}
    must(!pthread_create(&third, 0, allocates, 0), "another one");
    pthread_join(third, 0);
    done = 1;
    pthread_join(other, 0);
    if (stays) pause();
    return wrong;
}
int main(int argc, char **argv) {
    int status, wrong = 0;
    free(malloc(100));
    for (int i = 3; i < 10; i++) close(i);
    for (unsigned long count = number(argc, argv, 1, 100); count; count--) {
        pid_t pid = fork();
        must(pid >= 0, "a child");
        if (!pid) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(child(argc > 2));
        }
        must(waitpid(pid, &status, 0) == pid, "it ends");
        wrong += status != 0;
    }
    say("%d children saw a descriptor of another's\n", wrong);
    return 0;
}
