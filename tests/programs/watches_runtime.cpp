// Puts its own functions into the table through which the C++ run-time calls malloc and free, as
// profilers do. Prints how many calls of the run-time's operators they see: before that, while
// they are installed, and after the table is restored.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
static unsigned long taken, given;
static void *takes(size_t size) { taken++; return malloc(size); }
static void gives(void *block) { given++; free(block); }
static void **malloc_word, **free_word;

static int look(struct dl_phdr_info *info, size_t, void *) {
    if (!strstr(info->dlpi_name, "libstdc++.so.6")) return 0;
    const ElfW(Dyn) *entry = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) entry = reinterpret_cast<const ElfW(Dyn) *>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    const ElfW(Rela) *tables[2] = {};
    size_t bytes[2] = {};
    const ElfW(Sym) *symbols = nullptr;
    const char *strings = nullptr;
    for (; entry && entry->d_tag != DT_NULL; entry++) switch (entry->d_tag) {
        case DT_JMPREL: tables[0] = reinterpret_cast<const ElfW(Rela) *>(entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: bytes[0] = entry->d_un.d_val; break;
        case DT_RELA: tables[1] = reinterpret_cast<const ElfW(Rela) *>(entry->d_un.d_ptr); break;
        case DT_RELASZ: bytes[1] = entry->d_un.d_val; break;
        case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym) *>(entry->d_un.d_ptr); break;
        case DT_STRTAB: strings = reinterpret_cast<const char *>(entry->d_un.d_ptr); break;
    }
    for (int table = 0; table < 2; table++)
        for (size_t i = 0; i < bytes[table] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) &relocation = tables[table][i];
            auto kind = ELF64_R_TYPE(relocation.r_info);
            if (kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT) continue;
            const char *name = strings + symbols[ELF64_R_SYM(relocation.r_info)].st_name;
            void **word = reinterpret_cast<void **>(info->dlpi_addr + relocation.r_offset);
            if (!strcmp(name, "malloc") && !malloc_word) malloc_word = word;
            if (!strcmp(name, "free") && !free_word) free_word = word;
        }
    return 1;
}
static void *put(void **word, void *function) {
    void *old = *word;
    uintptr_t page = reinterpret_cast<uintptr_t>(word) & ~uintptr_t(4095);
    if (mprotect(reinterpret_cast<void *>(page), 4096, PROT_READ | PROT_WRITE)) abort();
    *word = function;
    return old;
}
static void uses(const char *when) {
    taken = given = 0;
    for (int i = 0; i < 1000; i++) {
        void *block = operator new(100);
        __asm__ volatile("" : "+r"(block) : : "memory");
        operator delete(block);
        block = operator new[](200, std::nothrow);
        __asm__ volatile("" : "+r"(block) : : "memory");
        operator delete[](block);
    }
    char text[80];
    int n = snprintf(text, sizeof text, "%s: %lu taken, %lu given\n", when, taken, given);
    if (write(1, text, n) != n) abort();
}
int main() {
    dl_iterate_phdr(look, nullptr);
    if (!malloc_word || !free_word) return 2;
    uses("before");
    void *old_malloc = put(malloc_word, reinterpret_cast<void *>(takes)), *old_free = put(free_word, reinterpret_cast<void *>(gives));
    uses("watched");
    put(malloc_word, old_malloc);
    uses("frees watched");
    put(free_word, old_free);
    uses("after");
}
