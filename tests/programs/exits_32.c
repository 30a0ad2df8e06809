/* A 32-bit program without any library: exits with 5, or with 6 if its environment names heaptape's. */
static int is_named(const char *text) {
    for (; *text; text++) {
        const char *at = text, *name = "libheaptape";
        while (*name && *at == *name) at++, name++;
        if (!*name) return 1;
    }
    return 0;
}
__attribute__((used)) void begin(int *stack) {
    char **environment = (char **)(stack + 1 + *stack + 1);
    int status = 5;
    for (; *environment; environment++) if (is_named(*environment)) status = 6;
    __asm__ volatile("int $0x80" : : "a"(1), "b"(status));
}
__asm__(".globl _start\n_start: mov %esp, %eax\n push %eax\n call begin\n");
