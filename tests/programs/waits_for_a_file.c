/* waits_for_a_file FILE: a thread reads FILE from 200 KiB on, while the first one allocates. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *read_file(void *path) {
    static char bytes[4096];
    int file = open(path, O_RDONLY);
    return pread(file, bytes, sizeof bytes, 200 << 10) < 0 ? path : NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2 || pthread_create(&thread, NULL, read_file, argv[1])) return 2;
    for (;;) {
        free(malloc(100));
        usleep(1000);
    }
}
