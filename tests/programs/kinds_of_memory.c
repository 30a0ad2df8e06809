/* kinds_of_memory WHICH: takes memory of one kind, and prints what the kernel counts of it: NAME BYTES, one on a line.
 *
 * huge     a block of which each huge page was written, and a mapping for huge pages that was read only
 * files    a file that is mapped and read, of which a third was written, and shared memory
 * zero     memory that was read and never written
 * swapped  written memory that the kernel is requested to swap out
 * remapped memory of the program's own, at the addresses of blocks that were freed
 * fork     blocks that the parent writes again while a child has them, too; the child frees every second one
 */
#include "own.h"
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
enum { BLOCKS = 4000, BLOCK = 6000 };
static char *blocks[BLOCKS];

/* Returns the sum of a field of /proc/self/smaps over the mappings that overlap a range. */
static size_t smaps(const char *field, const void *start, size_t size) {
    static char text[1 << 20];
    size_t length = 0, sum = 0, first, end;
    int file = open("/proc/self/smaps", O_RDONLY), is_inside = 0;
    for (ssize_t got; (got = read(file, text + length, sizeof text - 1 - length)) > 0;) length += (size_t)got;
    close(file);
    text[length] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(0, "\n")) {
        if (sscanf(line, "%zx-%zx ", &first, &end) == 2)
            is_inside = first < (size_t)start + size && end > (size_t)start;
        else if (is_inside && strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
            sum += (size_t)atol(line + strlen(field) + 1) * 1024;
    }
    return sum;
}

static void print(const char *name, size_t bytes) {
    say("%s %zu\n", name, bytes);
}

static void *map(size_t size, int flags, int file) {
    void *memory = mmap(0, size, PROT_READ | PROT_WRITE, flags | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    must(memory != MAP_FAILED, "mmap");
    return memory;
}

static void touch(char *memory, size_t size, int is_write) {
    for (size_t at = 0; at < size; at += 4096) {
        if (is_write) ((volatile char *)memory)[at] = 1;
        else (void)((volatile char *)memory)[at];
    }
}

static void huge(void) {
    char *block = aligned_alloc(2 * MIB, 24 * MIB), *untouched = map(18 * MIB, MAP_PRIVATE, -1);
    madvise(block, 24 * MIB, MADV_HUGEPAGE);
    madvise(untouched, 18 * MIB, MADV_HUGEPAGE);
    touch(block, 24 * MIB, 1);
    touch(untouched, 18 * MIB, 0);
    print("huge", smaps("AnonHugePages", block, 24 * MIB));
    print("zero", 18 * MIB - smaps("Rss", untouched, 18 * MIB));
}

static void files(void) {
    FILE *file = tmpfile();
    must(file && ftruncate(fileno(file), 9 * (off_t)MIB) == 0, "a file");
    char *mapped = map(9 * MIB, MAP_PRIVATE, fileno(file));
    char *shared = map(5 * MIB, MAP_SHARED, -1);
    touch(mapped, 9 * MIB, 0);
    touch(mapped, 3 * MIB, 1);
    touch(shared, 5 * MIB, 1);
    print("files", smaps("Rss", mapped, 9 * MIB));
    print("shared", smaps("Rss", shared, 5 * MIB));
}

static void zero(void) {
    char *memory = map(20 * MIB, MAP_PRIVATE, -1);
    madvise(memory, 20 * MIB, MADV_NOHUGEPAGE);
    touch(memory, 20 * MIB, 0);
    touch(memory, 7 * MIB, 1);
    print("zero", 20 * MIB - smaps("Rss", memory, 20 * MIB));
}

static void swapped(void) {
    char *memory = map(20 * MIB, MAP_PRIVATE, -1);
    madvise(memory, 20 * MIB, MADV_NOHUGEPAGE);
    touch(memory, 20 * MIB, 1);
    madvise(memory, 6 * MIB, 21 /* MADV_PAGEOUT */);
    usleep(200000);
    print("swapped", smaps("Swap", memory, 20 * MIB));
}

static void remapped(void) {
    for (int round = 0; round < 3; round++) {
        char *volatile block = malloc(40 * MIB);
        touch(block, 40 * MIB, 1);
        free(block);
    }
    touch(map(40 * MIB, MAP_PRIVATE, -1), 40 * MIB, 1);
}

static void forks(void) {
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(BLOCK), 1, BLOCK);
    int child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        for (int i = 0; i < BLOCKS; i += 2) free(blocks[i]);
    } else {
        for (int i = 0; i < BLOCKS; i += 3) memset(blocks[i], 2, BLOCK);
    }
    usleep(400000);
    if (child == 0) exit(0);
    int status = 0;
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
}

int main(int argc, char **argv) {
    const struct { const char *name; void (*run)(void); } kinds[] = {
        { "huge", huge }, { "files", files }, { "zero", zero }, { "swapped", swapped }, { "remapped", remapped },
        { "fork", forks },
    };
    int is_known = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (argc > 1 && strcmp(argv[1], kinds[i].name) == 0) kinds[i].run(), is_known = 1;
    must(is_known, "the kind of memory");
    usleep(200000);
    return 0;
}
