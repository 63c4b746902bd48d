/*
 * A program that uses a card as a tenant would, for the tests of this folder. It needs the driver
 * alone: libcuda.so.1 is loaded at run time, and its kernels are PTX that the driver compiles.
 *
 *   cuda_load load MIB BUSY_MS IDLE_MS SECONDS BLOCKS   hold MIB; work and rest in turn
 *   cuda_load fault                                     write to an address that is not ours
 *
 * One busy spell is a fixed amount of work, half to one and a half times what takes BUSY_MS on a card of
 * one's own, and the rests vary likewise: a steady rhythm would beat with the driver's own sampling. It says
 * in lines of JSON what it sees ("ready") and, after SECONDS or SIGTERM, what it has done ("done"): how long it
 * waited for its kernels ("busy_seconds"), and how long they would take on a card of their own at the clock
 * of the start ("card_seconds").
 * CUDA's errors end it with exit code 3 and {"error": NUMBER, "call": NAME}; 2 is out of memory there.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int result;
typedef uint64_t address;
typedef struct { unsigned char bytes[16]; } uuid;

/* The driver API's functions that are used; names and types as in NVIDIA's reference of it. */
#define FUNCTIONS(X) \
    X(result, cuInit, (unsigned)) \
    X(result, cuDeviceGetCount, (int *)) \
    X(result, cuDeviceGet, (int *, int)) \
    X(result, cuDeviceGetUuid, (uuid *, int)) \
    X(result, cuDeviceGetAttribute, (int *, int, int)) \
    X(result, cuDevicePrimaryCtxRetain, (void **, int)) \
    X(result, cuCtxSetCurrent, (void *)) \
    X(result, cuCtxSynchronize, (void)) \
    X(result, cuMemAlloc_v2, (address *, size_t)) \
    X(result, cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(result, cuModuleLoadData, (void **, const void *)) \
    X(result, cuModuleGetFunction, (void **, void *, const char *)) \
    X(result, cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                               unsigned, void *, void **, void **))
#define DECLARE(type, name, arguments) static type (*name) arguments;
FUNCTIONS(DECLARE)

enum { MULTIPROCESSORS = 16 }; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */

static const char KERNELS[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 rounds) {\n"
    "  .reg .u64 %left; .reg .u64 %at; .reg .f32 %x; .reg .pred %more;\n"
    "  ld.param.u64 %left, [rounds];\n  mov.f32 %x, 0f3F800000;\n"
    "again:\n  fma.rn.f32 %x, %x, 0f3F7FFFFF, 0f358637BD;\n  sub.u64 %left, %left, 1;\n"
    "  setp.ne.u64 %more, %left, 0;\n  @%more bra again;\n"
    /* A store that never happens keeps the loop from being removed. */
    "  setp.lt.f32 %more, %x, 0f00000000;\n  mov.u64 %at, 0;\n"
    "  @%more st.global.f32 [%at], %x;\n  ret;\n}\n"
    ".visible .entry fault() {\n  .reg .u64 %at; .reg .u32 %v;\n"
    "  mov.u64 %at, 4096; mov.u32 %v, 7;\n  st.global.u32 [%at], %v;\n  ret;\n}\n";

static volatile sig_atomic_t ended;
static void end(int signal) { (void)signal; ended = 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check(result found, const char *call) {
    if (!found)
        return;
    printf("{\"error\": %d, \"call\": \"%s\"}\n", found, call);
    fflush(stdout);
    _exit(3);
}
#define TRY(call) check((call), #call)

static void load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("{\"error\": -1, \"call\": \"dlopen: %s\"}\n", dlerror());
        exit(3);
    }
#define FIND(type, name, arguments) \
    if (!(*(void **)&name = dlsym(library, #name))) { \
        printf("{\"error\": -1, \"call\": \"dlsym " #name "\"}\n"); \
        exit(3); \
    }
    FUNCTIONS(FIND)
}

static void launch(void *kernel, unsigned blocks, uint64_t rounds) {
    void *arguments[] = {&rounds};
    TRY(cuLaunchKernel(kernel, blocks, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
    TRY(cuCtxSynchronize());
}

/* The fastest of ten tries: the card may be working for others meanwhile. */
static double seconds_a_round(void *kernel, unsigned blocks) {
    const uint64_t rounds = 200000;
    double best = 1e9;
    launch(kernel, blocks, rounds);
    for (int i = 0; i < 10; i++) {
        double began = now();
        launch(kernel, blocks, rounds);
        double took = now() - began;
        best = took < best ? took : best;
    }
    return best / rounds;
}

static double about(double middle) { return middle * (0.5 + rand() / (RAND_MAX + 1.0)); }

static void rest(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    if (!ended)
        nanosleep(&t, NULL);
}

static void use(void *module, int device, char **argument) {
    double mib = atof(argument[0]), spell_of_s = atof(argument[1]) / 1e3, idle_s = atof(argument[2]) / 1e3;
    double limit_s = atof(argument[3]);
    unsigned blocks = (unsigned)atoi(argument[4]);
    void *work;
    address held;
    size_t left, total;
    int processors, count;
    uuid id;
    TRY(cuModuleGetFunction(&work, module, "work"));
    TRY(cuDeviceGetCount(&count));
    TRY(cuDeviceGetUuid(&id, device));
    TRY(cuDeviceGetAttribute(&processors, MULTIPROCESSORS, device));
    TRY(cuMemAlloc_v2(&held, (size_t)(mib * 1024 * 1024)));
    TRY(cuMemGetInfo_v2(&left, &total));
    double round_s = seconds_a_round(work, blocks);
    printf("{\"ready\": {\"pid\": %d, \"cards\": %d, \"uuid\": \"GPU-", getpid(), count);
    for (int i = 0; i < 16; i++)
        printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id.bytes[i]);
    printf("\", \"processors\": %d, \"free_mib\": %zu, \"total_mib\": %zu}}\n", processors, left >> 20, total >> 20);
    fflush(stdout);
    double began = now(), done_s = 0, busy_s = 0;
    while (!ended && now() - began < limit_s) {
        double spell_s = about(spell_of_s), from = now();
        /* Short kernels: the end is seen in time, and others get the card between two of them. */
        for (double left_s = spell_s; left_s > 0 && !ended; left_s -= 0.002) {
            double part_s = left_s < 0.002 ? left_s : 0.002;
            launch(work, blocks, (uint64_t)(part_s / round_s) + 1);
            done_s += part_s;
        }
        busy_s += now() - from;
        if (idle_s > 0)
            rest(about(idle_s));
    }
    printf("{\"done\": {\"seconds\": %.3f, \"busy_seconds\": %.3f, \"card_seconds\": %.3f}}\n", now() - began,
           busy_s, done_s);
    fflush(stdout);
}

int main(int count, char **argument) {
    int loads = count == 7 && !strcmp(argument[1], "load"), faults = count == 2 && !strcmp(argument[1], "fault");
    if (!loads && !faults) {
        fprintf(stderr, "want: cuda_load load MIB BUSY_MS IDLE_MS SECONDS BLOCKS, or cuda_load fault\n");
        return 2;
    }
    signal(SIGTERM, end);
    srand((unsigned)getpid());
    int device;
    void *context, *module, *fault;
    load_driver();
    TRY(cuInit(0));
    TRY(cuDeviceGet(&device, 0));
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    TRY(cuCtxSetCurrent(context));
    TRY(cuModuleLoadData(&module, KERNELS));
    if (loads) {
        use(module, device, argument + 2);
        return 0;
    }
    TRY(cuModuleGetFunction(&fault, module, "fault"));
    TRY(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    return 0;
}
