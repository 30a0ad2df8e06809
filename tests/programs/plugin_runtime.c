/* A library that calls the operators of a C++ run-time, each form N times, and returns how many of
 * these calls have reached that. */
#include <stddef.h>
void *new_one(size_t size) __asm__("_Znwm");
void *new_many(size_t size) __asm__("_Znam");
void *new_one_or_null(size_t size, const void *nothrow) __asm__("_ZnwmRKSt9nothrow_t");
void *new_many_or_null(size_t size, const void *nothrow) __asm__("_ZnamRKSt9nothrow_t");
void delete_one(void *block) __asm__("_ZdlPv");
void delete_many(void *block) __asm__("_ZdaPv");
void delete_one_of(void *block, size_t size) __asm__("_ZdlPvm");
void delete_many_of(void *block, size_t size) __asm__("_ZdaPvm");
unsigned long runtime_calls(void);
unsigned long plugin_uses(unsigned long count) {
    unsigned long before = runtime_calls();
    for (unsigned long i = 0; i < count; i++) {
        delete_one(new_one(41));
        delete_many(new_many(43));
        delete_one_of(new_one_or_null(47, ""), 47);
        delete_many_of(new_many_or_null(0, ""), 0);
    }
    return runtime_calls() - before;
}
