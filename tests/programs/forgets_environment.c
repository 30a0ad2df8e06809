/* forgets_environment: overwrites its label in the environment, as setproctitle may do, forks a
 * child, and goes on. The child ends with its parent. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

int main(void) {
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, "HEAPTAPE_LABEL=", 15) == 0) memset(*variable, 'x', strlen(*variable));
    }
    if (fork() == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        free(malloc(100));
        usleep(20000);
    }
}
