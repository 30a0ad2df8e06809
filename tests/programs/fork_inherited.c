/* The parent allocates ten blocks of 601 bytes and forks. The child frees four of them, resizes
 * one to 607 bytes, allocates three of 613 bytes and frees one. Then the parent frees two. Live
 * at the end: in the parent 8 blocks, in the child 5 inherited blocks and 3 of its own. */
#include "own.h"
#include <sys/wait.h>
int main(void) {
    void *p[10], *q[3];
    for (int i = 0; i < 10; i++) p[i] = malloc(601);
    pid_t pid = fork();
    if (!pid) {
        for (int i = 0; i < 4; i++) free(p[i]);
        p[4] = realloc(p[4], 607);
        for (int i = 0; i < 3; i++) q[i] = malloc(613);
        free(q[1]);
        _exit(p[4] ? 5 : 1);
    }
    int status;
    must(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5, "the child");
    free(p[8]);
    free(p[9]);
    say("done\n");
    return 0;
}
