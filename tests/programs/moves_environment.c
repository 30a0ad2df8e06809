// Moves its environment to memory of its own, as PostgreSQL does to make room for its title, and has
// `setenv` copy that. With an argument it also loses as many arrays for children that it never starts.
#include <stdlib.h>
#include <string.h>

extern char **environ;

__attribute__((noinline)) static void move(void) {
    int count = 0;
    while (environ[count])
        count++;
    char **moved = malloc((count + 1) * sizeof *moved);
    for (int number = 0; number < count; number++)
        moved[number] = strdup(environ[number]);
    moved[count] = NULL;
    environ = moved;
}

__attribute__((noinline)) static void lose(void) {
    int count = 0;
    while (environ[count])
        count++;
    char **volatile lost = malloc((count + 1) * sizeof *lost);
    memcpy(lost, environ, (count + 1) * sizeof *lost);
    lost = NULL;
}

int main(int count, char **arguments) {
    (void)arguments;
    move();
    setenv("ADDED_LATER", "1", 1);
    for (; count > 1; count--)
        lose();
    return 0;
}
