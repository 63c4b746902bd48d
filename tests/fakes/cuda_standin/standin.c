/*
 * A stand-in for libcuda.so.1 on a card that the stand-in for NVML limits: what a process may have
 * is the hard limit of the cgroup whose file cgroup.procs names it. CUDA_STANDIN says what is odd:
 *
 *   unlimited    no limit stops an allocation
 *   card         a program is told the entire card
 *   refuses      no program may use the card
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
static const u64 CARD = 24000ULL << 20, CONTEXT = 300ULL << 20;
static u64 held;

static int odd(const char *what) {
    const char *said = getenv("CUDA_STANDIN");
    return said && !strcmp(said, what);
}

static int names_us(const char *group) {
    char path[600];
    int pid = 0;
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &pid) != 1)
        pid = 0;
    if (file)
        fclose(file);
    return pid == getpid();
}

/* Each setting is read anew, as the driver would know it. */
static u64 limit(void) {
    char path[600], group[512];
    u64 soft, hard, found = CARD;
    int card;
    snprintf(path, sizeof path, "%s.limits", getenv("NVML_STANDIN"));
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%d %llu %llu %511s", &card, &soft, &hard, group) == 4)
        if (names_us(group) && hard < found)
            found = hard;
    if (file)
        fclose(file);
    return found;
}

/* The stand-in for NVML is told what we use. */
static void tell(void) {
    char path[600], group[512];
    u64 soft, hard;
    int card;
    snprintf(path, sizeof path, "%s.limits", getenv("NVML_STANDIN"));
    FILE *file = fopen(path, "r"), *values = fopen(getenv("NVML_STANDIN"), "a");
    while (file && values && fscanf(file, "%d %llu %llu %511s", &card, &soft, &hard, group) == 4)
        if (names_us(group))
            fprintf(values, "used_by.%s %llu\n", group, held);
    if (file)
        fclose(file);
    if (values)
        fclose(values);
}

int cuInit(unsigned flags) { (void)flags; return odd("refuses") ? 100 : 0; }
int cuDeviceGet(int *device, int which) { *device = which; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &held;
    held = CONTEXT;
    return 0;
}

int cuMemGetInfo_v2(size_t *left, size_t *total) {
    *total = odd("card") ? CARD : limit();
    *left = *total - held;
    return 0;
}

int cuMemAlloc_v2(u64 *address, size_t size) {
    if (held + size > (odd("unlimited") ? CARD : limit()))
        return 2;
    held += size;
    tell();
    *address = held;
    return 0;
}
