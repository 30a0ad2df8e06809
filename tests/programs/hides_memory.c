/* hides_memory MIB [SECONDS]: takes memory by system calls of its own, past every library, writes to
 * it, and stays for a second, in which its pages are looked at. With -DVARIABLE the memory is a
 * variable instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef VARIABLE
static char table[64 << 20];
static char *taken(size_t bytes) { return bytes <= sizeof table ? table : NULL; }
#else
static char *taken(size_t bytes) {
    long result = SYS_mmap;
    register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
    register long file __asm__("r8") = -1;
    register long offset __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(0), "S"(bytes), "d"(PROT_READ | PROT_WRITE), "r"(flags), "r"(file), "r"(offset)
                     : "rcx", "r11", "memory");
    return (char *)result;
}
#endif

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 1) << 20;
    char *memory = taken(bytes);
    memset(memory, 1, bytes);
    free(malloc(100));
    sleep(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
    puts("done");
    return memory[bytes - 1] - 1;
}
