/* Changes its root to the given empty folder, drops its rights, and continues: allocates, starts
 * a thread, forks. Needs root. */
#include "own.h"
#include <pthread.h>
#include <sys/wait.h>
static void *work(void *v) { for (int i = 0; i < 100; i++) free(malloc(1103)); return v; }
int main(int argc, char **argv) {
    must(argc > 1 && !chroot(argv[1]) && !chdir("/"), "chroot");
    must(!setgid(65534) && !setuid(65534), "setuid");
    for (int i = 0; i < 100; i++) free(malloc(1109));
    pthread_t id;
    must(!pthread_create(&id, 0, work, 0), "a thread");
    pthread_join(id, 0);
    pid_t pid = fork();
    if (!pid) { for (int i = 0; i < 100; i++) free(malloc(1117)); _exit(7); }
    int status;
    must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child");
    say("done\n");
    return 0;
}
