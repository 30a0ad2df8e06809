/* Closes every descriptor above 2 by the method HOW, as daemons do, before and after it
 * allocates. Then it opens its own files from descriptor 3 on, writes to them, and checks every
 * byte. */
#include "own.h"
#include <dirent.h>
extern int close_range(unsigned, unsigned, int);
extern void closefrom(int);
static void closes(const char *how) {
    if (!strcmp(how, "closefrom")) closefrom(3);
    else if (!strcmp(how, "close_range")) must(!close_range(3, ~0u, 0), "close_range");
    else if (!strcmp(how, "loop")) for (int i = 3; i < 1024; i++) close(i);
    else if (!strcmp(how, "dup2")) for (int i = 3; i < 64; i++) must(dup2(0, i) == i, "dup2");
    else if (!strcmp(how, "proc")) {
        DIR *folder = opendir("/proc/self/fd");
        for (struct dirent *e; (e = readdir(folder));) {
            int n = atoi(e->d_name);
            if (n > 2 && n != dirfd(folder)) close(n);
        }
        closedir(folder);
    } else must(0, "a way");
}
int main(int argc, char **argv) {
    must(argc > 1, "a way");
    closes(argv[1]);
    free(malloc(901));
    closes(argv[1]);
    int file[20];
    for (int i = 0; i < 20; i++) {
        file[i] = memfd_create("own", 0);
        if (strcmp(argv[1], "dup2")) must(file[i] == 3 + i, "the next number");
    }
    for (int round = 0; round < 1000; round++)
        for (int i = 0; i < 20; i++) {
            void *p = malloc(907 + round);
            char text[8];
            snprintf(text, sizeof text, "%02d %03d", i, round);
            must(write(file[i], text, 6) == 6, "write");
            free(p);
        }
    for (int i = 0; i < 20; i++) {
        must(lseek(file[i], 0, SEEK_END) == 6000, "size");
        for (int round = 0; round < 1000; round++) {
            char text[8], want[8];
            snprintf(want, sizeof want, "%02d %03d", i, round);
            must(pread(file[i], text, 6, round * 6) == 6 && !memcmp(text, want, 6), "bytes");
        }
    }
    say("%s\n", argv[1]);
    return 0;
}
