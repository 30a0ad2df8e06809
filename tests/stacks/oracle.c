// A second opinion on call stacks, from unwinders that aren't heaptape's, in the process that is
// recorded. It's preloaded in front of the library: each allocation function is a stub that notes
// the call and *jumps* to the library's function with all registers and the stack pointer as they
// were. So the library sees its caller directly and takes its usual path through its caches.
//
// Some calls are sampled. For these, libunwind walks the stack from the caller's registers, then
// libgcc does. If the two disagree, gdb is asked while the thread waits: we leave a file
// PID.TID.ask, and tests/stacks/check.py writes the answer and removes the file.
//
// Each sample goes to the file PID.START.EXE in the folder $STACKS_ORACLE as 64-bit words:
//   MAGIC, words that follow, tid, number of the call in its thread, size, return address,
//   then four lists, each with its length first: the calls before (pairs of size and return
//   address, the latest first), the stack of libunwind, of libgcc, and the name of the question.
//
// libunwind is opened by itself, not linked: it exports libgcc's names too, and must not stand in
// front of libgcc for the program's exceptions.
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libunwind.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

typedef uint64_t u64;

enum { MAX_FRAMES = 1100, CONTEXT = 16, ASKED = 64 };
#define MAGIC 0x314b434154534f48ull
#define LOCAL static __thread __attribute__((tls_model("initial-exec")))

// What a stub saves, in the order of its pushes from the last to the first.
struct registers {
  u64 rbx, rbp, r12, r13, r14, r15;
  u64 r9, r8, rcx, rdx, rsi, rdi, rax;
  u64 return_address;
};

enum kind { SIZE, PRODUCT, SECOND, THIRD, PRODUCT_LATER };

// name, how its arguments give the size
#define FUNCTIONS(F) \
  F(0, malloc, SIZE) F(1, calloc, PRODUCT) F(2, realloc, SECOND) F(3, reallocarray, PRODUCT_LATER) \
  F(4, memalign, SECOND) F(5, aligned_alloc, SECOND) F(6, posix_memalign, THIRD) F(7, valloc, SIZE) F(8, pvalloc, SIZE) \
  F(9, _Znwm, SIZE) F(10, _Znam, SIZE) F(11, _ZnwmRKSt9nothrow_t, SIZE) F(12, _ZnamRKSt9nothrow_t, SIZE) \
  F(13, _ZnwmSt11align_val_t, SIZE) F(14, _ZnamSt11align_val_t, SIZE) \
  F(15, _ZnwmSt11align_val_tRKSt9nothrow_t, SIZE) F(16, _ZnamSt11align_val_tRKSt9nothrow_t, SIZE)
enum { COUNT = 17 };

static const struct { const char *name; enum kind kind; } functions[COUNT] = {
#define ROW(number, name, kind) [number] = {#name, kind},
  FUNCTIONS(ROW)
};

// Where the stubs jump to; filled at the first call.
__attribute__((visibility("hidden"))) void *oracle_next[COUNT];

#define STUB(number, name, kind) \
  ".globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" \
  "push %rax\n.cfi_adjust_cfa_offset 8\nmov $" #number ", %eax\njmp 1f\n.cfi_endproc\n.size " #name ", .-" #name "\n"
// The number of the function is in eax, and rax on the stack.
__asm__(".text\n" FUNCTIONS(STUB)
  ".type oracle_stub, @function\noracle_stub:\n1:\n.cfi_startproc\n.cfi_def_cfa_offset 16\n"
#define PUSH(name) "push %" name "\n.cfi_adjust_cfa_offset 8\n"
#define POP(name) "pop %" name "\n.cfi_adjust_cfa_offset -8\n"
  PUSH("rdi") PUSH("rsi") PUSH("rdx") PUSH("rcx") PUSH("r8") PUSH("r9")
  PUSH("r15") PUSH("r14") PUSH("r13") PUSH("r12") PUSH("rbp") PUSH("rbx")
  "mov %rsp, %rdi\nmov %eax, %esi\npush %rax\npush %rax\n.cfi_adjust_cfa_offset 16\n"
  "call oracle_note\n"
  "pop %rax\npop %rax\n.cfi_adjust_cfa_offset -16\n"
  POP("rbx") POP("rbp") POP("r12") POP("r13") POP("r14") POP("r15")
  POP("r9") POP("r8") POP("rcx") POP("rdx") POP("rsi") POP("rdi")
  "lea oracle_next(%rip), %r11\nmov (%r11,%rax,8), %r11\npop %rax\n.cfi_adjust_cfa_offset -8\njmp *%r11\n"
  ".cfi_endproc\n.size oracle_stub, .-oracle_stub\n"
  ".hidden oracle_entry\n.globl oracle_entry\n.set oracle_entry, malloc\n");
extern const char oracle_entry[] __attribute__((visibility("hidden")));

static char path[512];
static size_t folder_length;
static u64 every = 97, most = 3000, questions = 4;
static u64 samples, asked[ASKED], asked_count, maps_of, disagreements;
// Bodies of the functions behind the library's, whose inner calls are no events of their own.
static struct range { u64 start, end; } inner[COUNT + 1], own[COUNT];

LOCAL u64 calls;
// Also the one of a child of vfork, whose calls are those of the thread that waits for it.
LOCAL u64 own_tid;
// The last call of an operator: where its return address is, and that address.
LOCAL u64 operator_slot, operator_from;
LOCAL int busy;
LOCAL struct { u64 size, from; } before[CONTEXT];

static u64 words[8 + 2 * CONTEXT + 2 * MAX_FRAMES + 8];
static u64 one[MAX_FRAMES], other[MAX_FRAMES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static u64 number_in(const char *name, u64 otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static u64 now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (u64)time.tv_sec * 1000000000 + (u64)time.tv_nsec;
}

static void begin(void) {
  const char *folder = getenv("STACKS_ORACLE");
  char exe[256];
  ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (!folder || length <= 0) return;
  exe[length] = 0;
  const char *name = strrchr(exe, '/');
  folder_length = strlen(folder) + 1;
  snprintf(path, sizeof path, "%s/%d.%llu.%s", folder, getpid(), (unsigned long long)now(), name ? name + 1 : exe);
}

static void in_child(void) {
  samples = asked_count = maps_of = disagreements = 0;
  calls = own_tid = 0;
  memset(before, 0, sizeof before);
  pthread_mutex_init(&lock, NULL);
  begin();
}

static void find(void) {
  for (int i = 0; i < COUNT; i++) {
    void *next = dlsym(RTLD_NEXT, functions[i].name);
    __atomic_store_n(&oracle_next[i], next, __ATOMIC_RELEASE);
  }
}

static int find_library(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  (void)data;
  if (!strstr(info->dlpi_name, "/libheaptape")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
      inner[COUNT].start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      inner[COUNT].end = inner[COUNT].start + info->dlpi_phdr[i].p_memsz;
    }
  return 1;
}

static void bounds(void *address, struct range *range) {
  Dl_info info;
  const ElfW(Sym) *symbol = NULL;
  if (address && dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol) {
    range->start = (u64)info.dli_saddr;
    range->end = range->start + symbol->st_size;
  }
}

// The functions that the library calls are in libc and libstdc++, loaded after it. Where they end
// in a jump, the library itself is the caller.
static void find_inner(void) {
  static const char *const libraries[] = {"libc.so.6", "libstdc++.so.6"};
  for (int l = 0; l < 2; l++) {
    void *handle = dlopen(libraries[l], RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) continue;
    for (int i = l ? 9 : 3; i < (l ? COUNT : 9); i++)
      bounds(dlsym(handle, functions[i].name), &inner[i]);
  }
  // A program's own operator is behind the library's others, and is called by itself, too.
  for (int i = 9; i < COUNT; i++) bounds(dlsym(RTLD_DEFAULT, functions[i].name), &own[i]);
}

static int changes(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(u64 *)data = info->dlpi_adds + info->dlpi_subs;
  return 1;
}

// Appends the file of mappings to PATH.maps, by which addresses get names of modules.
static void copy_maps(void) {
  char name[600], bytes[4096];
  snprintf(name, sizeof name, "%s.maps", path);
  int from = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), to = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  for (ssize_t length; from >= 0 && to >= 0 && (length = read(from, bytes, sizeof bytes)) > 0;)
    if (write(to, bytes, (size_t)length) < 0) break;
  close(from);
  close(to);
}

static struct {
  __typeof__(unw_init_local2) *init;
  __typeof__(unw_step) *step;
  __typeof__(unw_get_reg) *get;
  __typeof__(unw_flush_cache) *flush;
  unw_addr_space_t *space;
} libunwind;

static int open_libunwind(void) {
  void *handle = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (!handle) return 0;
  libunwind.init = dlsym(handle, "_ULx86_64_init_local2");
  libunwind.step = dlsym(handle, "_ULx86_64_step");
  libunwind.get = dlsym(handle, "_ULx86_64_get_reg");
  libunwind.flush = dlsym(handle, "_Ux86_64_flush_cache");
  libunwind.space = dlsym(handle, "_ULx86_64_local_addr_space");
  return libunwind.init && libunwind.step && libunwind.get && libunwind.flush && libunwind.space;
}

static u64 by_libunwind(const struct registers *at, u64 *frames) {
  // As if the signal of a debugger had come at the first instruction of the stub.
  unw_context_t context;
  memset(&context, 0, sizeof context);
  greg_t *registers = ((ucontext_t *)&context)->uc_mcontext.gregs;
  registers[REG_RIP] = (greg_t)oracle_entry;
  registers[REG_RSP] = (greg_t)&at->return_address;
  registers[REG_RBX] = (greg_t)at->rbx;
  registers[REG_RBP] = (greg_t)at->rbp;
  registers[REG_R12] = (greg_t)at->r12;
  registers[REG_R13] = (greg_t)at->r13;
  registers[REG_R14] = (greg_t)at->r14;
  registers[REG_R15] = (greg_t)at->r15;
  unw_cursor_t cursor;
  u64 count = 0;
  if (libunwind.init(&cursor, &context, UNW_INIT_SIGNAL_FRAME)) return 0;
  while (count < MAX_FRAMES && libunwind.step(&cursor) > 0) {
    unw_word_t address;
    if (libunwind.get(&cursor, UNW_REG_IP, &address) || !address) break;
    frames[count++] = address;
  }
  return count;
}

struct walk { u64 from, count; u64 *frames; };

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data) {
  struct walk *walk = data;
  u64 address = _Unwind_GetIP(context);
  if (!walk->count && address != walk->from) return _URC_NO_REASON;
  if (!address || walk->count == MAX_FRAMES) return _URC_END_OF_STACK;
  walk->frames[walk->count++] = address;
  return _URC_NO_REASON;
}

static void ask(u64 tid, char *question) {
  // A file of this name is the question, until somebody has answered it.
  char name[600];
  snprintf(name, sizeof name, "%s.%llu.%llu.ask", path, (unsigned long long)tid, (unsigned long long)samples);
  snprintf(question, 400, "%.*s", 390, name + folder_length);
  int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  close(file);
  struct timespec pause = {0, 5000000};
  for (int i = 0; i < 12000 && !access(name, F_OK); i++) nanosleep(&pause, NULL);
}

static void sample(const struct registers *at, u64 size, int count_before) {
  u64 changed = 0;
  dl_iterate_phdr(changes, &changed);
  pthread_mutex_lock(&lock);
  if (!path[0] || samples >= most) goto out;
  samples++;
  if (changed != maps_of) {
    maps_of = changed;
    libunwind.flush(*libunwind.space, 0, 0);
    copy_maps();
  }
  u64 count = by_libunwind(at, one);
  struct walk walk = {at->return_address, 0, other};
  _Unwind_Backtrace(step, &walk);
  char question[400] = "";
  u64 equal = 0;
  while (equal < count && equal < walk.count && one[equal] == other[equal]) equal++;
  int is_doubtful = equal < count || equal < walk.count;
  // Where generated code is.
  if (is_doubtful && !(disagreements & (disagreements + 1))) copy_maps();
  disagreements += (u64)is_doubtful;
  if (is_doubtful && asked_count < questions && asked_count < ASKED) {
    u64 place = one[equal ? equal - 1 : 0], i = 0;
    while (i < asked_count && asked[i] != place) i++;
    if (i == asked_count) {
      asked[asked_count++] = place;
      ask((u64)syscall(SYS_gettid), question);
    }
  }
  u64 *to = words;
  *to++ = MAGIC;
  *to++ = 0;
  *to++ = own_tid;
  *to++ = calls;
  *to++ = size;
  *to++ = at->return_address;
  *to++ = 2 * (u64)count_before;
  for (int i = 1; i <= count_before; i++) {
    *to++ = before[(calls - (u64)i) % CONTEXT].size;
    *to++ = before[(calls - (u64)i) % CONTEXT].from;
  }
  *to++ = count;
  memcpy(to, one, 8 * count);
  to += count;
  *to++ = walk.count;
  memcpy(to, other, 8 * walk.count);
  to += walk.count;
  u64 length = (strlen(question) + 7) / 8;
  *to++ = length;
  memcpy(to, question, 8 * length);
  to += length;
  words[1] = (u64)(to - words) - 2;
  // Opened each time: programs close what they don't know.
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file >= 0 && write(file, words, (size_t)((char *)to - (char *)words)) < 0) samples = most;
  close(file);
out:
  pthread_mutex_unlock(&lock);
}

__attribute__((visibility("hidden"))) void oracle_note(struct registers *at, int which) {
  int error = errno;
  if (!oracle_next[which]) find();
  u64 from = at->return_address, size = at->rdi;
  switch (functions[which].kind) {
    case SIZE: break;
    case PRODUCT: size = at->rdi * at->rsi; break;
    case SECOND: size = at->rsi; break;
    case THIRD: size = at->rdx; break;
    case PRODUCT_LATER: size = at->rsi * at->rdx; break;
  }
  // A realloc to nothing is a free.
  if ((which == 2 || which == 3) && at->rdi && !size) return;
  // libstdc++ may come with a module.
  if (which >= 9 && !inner[9].end) find_inner();
  u64 slot = (u64)&at->return_address;
  for (int i = 3; i <= COUNT; i++)
    if (from - inner[i].start < inner[i].end - inner[i].start) return;
  // The return address of a call that has returned is overwritten by the next call.
  int is_within = operator_slot - slot < 512 && *(u64 *)operator_slot == operator_from;
  for (int i = 9; is_within && i < COUNT; i++)
    if (from - own[i].start < own[i].end - own[i].start) return;
  if (which >= 9) {
    operator_slot = slot;
    operator_from = from;
  }
  if (!own_tid) own_tid = (u64)syscall(SYS_gettid);
  u64 call = calls++;
  u64 random = (call + 1) * 0x9e3779b97f4a7c15ull;
  // Rarer with time, so that the whole run has samples.
  u64 interval = every << (8 * samples / most);
  if (!busy && path[0] && samples < most && (call < 64 || call % interval == 0 || (random >> 32) % (2 * interval) == 0)) {
    busy = 1;
    calls = call;
    sample(at, size, (int)(call < CONTEXT ? call : CONTEXT));
    calls = call + 1;
    busy = 0;
  }
  before[call % CONTEXT].size = size;
  before[call % CONTEXT].from = from;
  errno = error;
}

__attribute__((constructor)) static void constructor(void) {
  find();
  find_inner();
  dl_iterate_phdr(find_library, NULL);
  every = number_in("STACKS_EVERY", every);
  most = number_in("STACKS_MOST", most);
  questions = number_in("STACKS_QUESTIONS", questions);
  pthread_atfork(NULL, NULL, in_child);
  // Until here, nothing is sampled.
  if (open_libunwind()) begin();
}
