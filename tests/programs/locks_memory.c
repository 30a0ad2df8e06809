/* locks_memory FILE: leaks, says so, and replaces a mapping of FILE with changes that FILE does not
 * take: the lock of its memory is held until then. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    volatile char *leak = malloc(123456);
    leak[0] = 1;
    int file = open(argv[1], O_RDWR);
    volatile char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || bytes == MAP_FAILED) return 1;
    bytes[0] = 1;
    getchar();
    mmap((void *)bytes, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return 0;
}
