/* A small C++ run-time: operators as those of libstdc++, with the name of that library. It counts
 * the calls that reach it. */
#include <stdlib.h>
static unsigned long calls;
unsigned long runtime_calls(void) { return calls; }
void *new_one(size_t size) __asm__("_Znwm");
void *new_many(size_t size) __asm__("_Znam");
void *new_one_or_null(size_t size, const void *nothrow) __asm__("_ZnwmRKSt9nothrow_t");
void *new_many_or_null(size_t size, const void *nothrow) __asm__("_ZnamRKSt9nothrow_t");
void delete_one(void *block) __asm__("_ZdlPv");
void delete_many(void *block) __asm__("_ZdaPv");
void delete_one_of(void *block, size_t size) __asm__("_ZdlPvm");
void delete_many_of(void *block, size_t size) __asm__("_ZdaPvm");
void *new_one(size_t size) { calls++; void *block = malloc(size ? size : 1); if (!block) abort(); return block; }
void *new_many(size_t size) { return new_one(size); }
void *new_one_or_null(size_t size, const void *nothrow) { (void)nothrow; return new_one(size); }
void *new_many_or_null(size_t size, const void *nothrow) { (void)nothrow; return new_one(size); }
void delete_one(void *block) { calls++; free(block); }
void delete_many(void *block) { delete_one(block); }
void delete_one_of(void *block, size_t size) { (void)size; delete_one(block); }
void delete_many_of(void *block, size_t size) { (void)size; delete_one(block); }
