/* landlocked PROGRAM…   lets itself read nothing but the system's own files (Landlock), and starts
 *                        the program in two ways: as a child, and in its place. Without Landlock it
 *                        prints "none". */
#include "own.h"
#include <linux/landlock.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    static const char *const allowed[] = { "/usr", "/etc", "/proc", "/dev" };
    struct landlock_ruleset_attr handled = { .handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE };
    long rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
    if (rules < 0 || argc < 2) return puts("none") < 0;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        struct landlock_path_beneath_attr beneath = { LANDLOCK_ACCESS_FS_READ_FILE, open(allowed[i], O_PATH | O_CLOEXEC) };
        must(!syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0), "a rule");
        close(beneath.parent_fd);
    }
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_landlock_restrict_self, rules, 0), "landlock");
    close(rules);
    pid_t child;
    int status;
    must(!posix_spawn(&child, argv[1], 0, 0, argv + 1, environ) && waitpid(child, &status, 0) == child && !status, "a child");
    execv(argv[1], argv + 1);
    return 4;
}
