/* The log of harm_steps: text in a file that the program and its runner map, so that it survives
 * any end of the program and needs no system call inside a sandbox. Each thread writes to its
 * own section, which the thread that joins it copies. */
#ifndef HARM_LOG_H
#define HARM_LOG_H
#include "own.h"
#include "processor.h"
#include <errno.h>

#define LANE_SIZE (128 << 10)
#define LANES 128
struct lane { _Atomic uint32_t used; char text[LANE_SIZE - 4]; };
struct shared {
    uint64_t magic;
    _Atomic uint64_t next_lane, processes, allocs, resizes, frees;
    char rest[4096 - 48];
    struct lane lanes[LANES];
};
static struct shared *shared;

static void put_bytes(struct lane *lane, const char *text, size_t size) {
    uint32_t at = lane->used;
    if (at + size > sizeof lane->text) return;
    memcpy(lane->text + at, text, size);
    lane->used = at + size;
}
static void put(struct lane *lane, const char *text) { put_bytes(lane, text, strlen(text)); }
static void put_number(struct lane *lane, long n, unsigned base) {
    char text[24], *at = text + sizeof text;
    unsigned long rest = n < 0 && base == 10 ? -(unsigned long)n : (unsigned long)n;
    do *--at = "0123456789abcdef"[rest % base]; while (rest /= base);
    if (n < 0 && base == 10) *--at = '-';
    put_bytes(lane, at, text + sizeof text - at);
}
/* Writes a line for a call: its name, its result, errno, and the floating-point state after it. */
static void result(struct lane *lane, const char *op, size_t op_size, long value, int error) {
    put_bytes(lane, op, op_size);
    put(lane, " ");
    put_number(lane, value, 10);
    put(lane, " errno ");
    put_number(lane, error, 10);
    unsigned state[2];
    float_states(state);
    put(lane, " float ");
    put_number(lane, state[0], 16);
    put(lane, " ");
    put_number(lane, state[1], 16);
    put(lane, "\n");
}
static struct lane *new_lane(void) {
    uint64_t number = atomic_fetch_add(&shared->next_lane, 1);
    return &shared->lanes[number < LANES ? number : LANES - 1];
}
static void append_lane(struct lane *to, const char *title, const struct lane *from) {
    put(to, title);
    put(to, " {\n");
    put_bytes(to, from->text, from->used);
    put(to, "}\n");
}
static void open_log(const char *path, int is_first) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    must(file >= 0, "the log");
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(shared != MAP_FAILED, "the log's mapping");
    close(file);
    if (is_first) { shared->magic = OWN_MAGIC; shared->next_lane = 1; }
    atomic_fetch_add(&shared->processes, 1);
}
#endif
