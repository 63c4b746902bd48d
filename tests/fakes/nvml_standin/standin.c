/*
 * A stand-in for libnvidia-ml.so.1 that answers from a text file, so that the true ctypes calls of
 * pynvml run on a machine without a card. Only what the node agent calls is here. Function names,
 * structures and error numbers are those of NVIDIA's public NVML interface; the code is our own.
 *
 * NVML_STANDIN names the file. It is read anew at every call, so a test may change it meanwhile:
 *
 *   KEY VALUE          for every card, or for the driver
 *   INDEX.KEY VALUE    for one card; goes before the line without index
 *
 * Keys that every function knows, FUNCTION being its C name:
 *
 *   error.FUNCTION N   return the error N
 *   hang.FUNCTION 1    do not return while the line is there
 *   together.FUNCTION N  do not return before N calls have begun
 *   race.FUNCTION N    the first N calls that bring a buffer find it too small
 *
 * A value that has no line is NVML_ERROR_NOT_SUPPORTED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMED_OUT = 10, IN_USE = 19, MEMORY = 20, VERSION_MISMATCH = 25
};
enum { MAX_CARDS = 16, MAX_FUNCTIONS = 128, LINE = 4096, DRIVER = -1 };

typedef unsigned long long u64;
typedef struct { int index; } card_t;
static card_t cards[MAX_CARDS];

/* -- the file ---------------------------------------------------------------------------------- */

static int find(const char *key, char *value) {
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (!space || (size_t)(space - line) != strlen(key) || strncmp(line, key, space - line))
            continue;
        strcpy(value, space + 1);
        found = 1;
        break;
    }
    if (file)
        fclose(file);
    return found;
}

static int text(int card, const char *key, char *value) {
    char full[256];
    snprintf(full, sizeof full, "%d.%s", card, key);
    return (card != DRIVER && find(full, value)) || find(key, value);
}

static int number(int card, const char *key, u64 *value) {
    char raw[LINE];
    if (!text(card, key, raw))
        return NOT_SUPPORTED;
    *value = strtoull(raw, NULL, 0);
    return SUCCESS;
}

static u64 number_or(int card, const char *key, u64 otherwise) {
    u64 value = otherwise;
    number(card, key, &value);
    return value;
}

/* -- calls are counted, and may fail or hang --------------------------------------------------- */

static struct { char name[64]; int calls; int races; } functions[MAX_FUNCTIONS];
static int live_samples;

static int slot(const char *name) {
    int at = 0;
    while (at < MAX_FUNCTIONS - 1 && functions[at].name[0] && strcmp(functions[at].name, name))
        at++;
    strncpy(functions[at].name, name, sizeof functions[at].name - 1);
    return at;
}

int standin_calls(const char *name) { return functions[slot(name)].calls; }
int standin_live_samples(void) { return live_samples; }

static void nap(int ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static int begun(int card, const char *name) {
    char key[128];
    int calls = __atomic_add_fetch(&functions[slot(name)].calls, 1, __ATOMIC_SEQ_CST);
    snprintf(key, sizeof key, "together.%s", name);
    while (calls < (int)number_or(card, key, 0)) {
        nap(10);
        calls = __atomic_load_n(&functions[slot(name)].calls, __ATOMIC_SEQ_CST);
    }
    snprintf(key, sizeof key, "hang.%s", name);
    while (number_or(card, key, 0))
        nap(10);
    snprintf(key, sizeof key, "error.%s", name);
    return (int)number_or(card, key, SUCCESS);
}

static int raced(int card, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "race.%s", name);
    return functions[slot(name)].races++ < (int)number_or(card, key, 0);
}

static int index_of(const card_t *card) {
    return card >= cards && card < cards + MAX_CARDS ? card->index : DRIVER;
}

#define BEGIN(card)                                                                                \
    do {                                                                                           \
        int error_ = begun(card, __func__);                                                        \
        if (error_ != SUCCESS)                                                                     \
            return error_;                                                                         \
    } while (0)

/* A function whose only answer is one number of a card. */
#define NUMBER(function, type, key)                                                                \
    int function(const card_t *card, type *out) {                                                  \
        u64 value = 0;                                                                             \
        BEGIN(index_of(card));                                                                     \
        int result = number(index_of(card), key, &value);                                          \
        if (result == SUCCESS)                                                                     \
            *out = (type)value;                                                                    \
        return result;                                                                             \
    }

static int put_text(int card, const char *key, char *out, unsigned size) {
    char value[LINE];
    if (!text(card, key, value))
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* -- the driver -------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    BEGIN(DRIVER);
    for (int i = 0; i < MAX_CARDS; i++)
        cards[i].index = i;
    return SUCCESS;
}

int nvmlShutdown(void) { BEGIN(DRIVER); return SUCCESS; }

const char *nvmlErrorString(int result) {
    static char message[64];
    snprintf(message, sizeof message, "stand-in error %d", result);
    return message;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    BEGIN(DRIVER);
    return put_text(DRIVER, "driver", out, size);
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    BEGIN(DRIVER);
    *out = (unsigned)number_or(DRIVER, "cards", 0);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **out) {
    BEGIN((int)index);
    if (index >= number_or(DRIVER, "cards", 0))
        return INVALID_ARGUMENT;
    *out = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **out) {
    char own[LINE];
    for (int i = 0; i < (int)number_or(DRIVER, "cards", 0); i++)
        if (text(i, "uuid", own) && !strcmp(own, uuid)) {
            BEGIN(i);
            *out = &cards[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

/* -- what a card is ---------------------------------------------------------------------------- */

int nvmlDeviceGetUUID(const card_t *card, char *out, unsigned size) {
    BEGIN(index_of(card));
    return put_text(index_of(card), "uuid", out, size);
}

int nvmlDeviceGetName(const card_t *card, char *out, unsigned size) {
    BEGIN(index_of(card));
    return put_text(index_of(card), "name", out, size);
}

NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetNumaNodeId, int, "numa")
NUMBER(nvmlDeviceGetArchitecture, unsigned, "architecture")
NUMBER(nvmlDeviceGetBrand, unsigned, "brand")
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, "virtualization")

int nvmlDeviceGetMigMode(const card_t *card, unsigned *current, unsigned *pending) {
    u64 mode = 0;
    BEGIN(index_of(card));
    int result = number(index_of(card), "mig", &mode);
    *current = *pending = (unsigned)mode;
    return result;
}

typedef struct {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(const card_t *card, pci_t *out) {
    BEGIN(index_of(card));
    memset(out, 0, sizeof *out);
    return put_text(index_of(card), "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetTopologyCommonAncestor(const card_t *a, const card_t *b, unsigned *out) {
    char key[64];
    u64 level = 0;
    BEGIN(index_of(a));
    snprintf(key, sizeof key, "ancestor.%d", index_of(b));
    int result = number(index_of(a), key, &level);
    *out = (unsigned)level;
    return result;
}

/* nvlink: one word for each link: the index of the other card, "switch", or "down". */
static int nvlink(const card_t *card, unsigned link, char *word) {
    char words[LINE];
    if (!text(index_of(card), "nvlink", words))
        return NOT_SUPPORTED;
    char *rest = words, *next = strtok_r(words, " ", &rest);
    for (; next && link; link--)
        next = strtok_r(NULL, " ", &rest);
    if (!next)
        return INVALID_ARGUMENT;
    strcpy(word, next);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(const card_t *card, unsigned link, unsigned *active) {
    char word[LINE];
    BEGIN(index_of(card));
    int result = nvlink(card, link, word);
    if (result == SUCCESS)
        *active = strcmp(word, "down") != 0;
    return result;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(const card_t *card, unsigned link, unsigned *type) {
    char word[LINE];
    BEGIN(index_of(card));
    int result = nvlink(card, link, word);
    if (result == SUCCESS)
        *type = strcmp(word, "switch") ? 0 : 2;
    return result;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const card_t *card, unsigned link, pci_t *out) {
    char word[LINE];
    BEGIN(index_of(card));
    int result = nvlink(card, link, word);
    if (result != SUCCESS)
        return result;
    memset(out, 0, sizeof *out);
    if (!strcmp(word, "switch")) {
        strcpy(out->bus_id, "00000000:FF:00.0");
        return SUCCESS;
    }
    return put_text(atoi(word), "pci", out->bus_id, sizeof out->bus_id);
}

/* -- what a card measures ---------------------------------------------------------------------- */

typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;

int nvmlDeviceGetMemoryInfo(const card_t *card, memory_t *out) {
    int i = index_of(card);
    BEGIN(i);
    int result = number(i, "total", &out->total);
    out->used = number_or(i, "used", 0) + number_or(i, "reserved", 0);
    out->free = out->total - out->used;
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(const card_t *card, memory_v2_t *out) {
    int i = index_of(card);
    BEGIN(i);
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    int result = number(i, "total", &out->total);
    out->used = number_or(i, "used", 0);
    out->reserved = number_or(i, "reserved", 0);
    out->free = out->total - out->used - out->reserved;
    return result;
}

typedef struct { unsigned gpu, memory; } rates_t;

int nvmlDeviceGetUtilizationRates(const card_t *card, rates_t *out) {
    u64 gpu = 0;
    BEGIN(index_of(card));
    int result = number(index_of(card), "gpu", &gpu);
    out->gpu = (unsigned)gpu;
    out->memory = (unsigned)number_or(index_of(card), "copy", 0);
    return result;
}

static int codec(const card_t *card, const char *key, unsigned *percent, unsigned *period_us) {
    u64 value = 0;
    int result = number(index_of(card), key, &value);
    *percent = (unsigned)value;
    *period_us = 167000;
    return result;
}

int nvmlDeviceGetEncoderUtilization(const card_t *card, unsigned *percent, unsigned *period_us) {
    BEGIN(index_of(card));
    return codec(card, "encoder", percent, period_us);
}

int nvmlDeviceGetDecoderUtilization(const card_t *card, unsigned *percent, unsigned *period_us) {
    BEGIN(index_of(card));
    return codec(card, "decoder", percent, period_us);
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "replays")

static int numbered(const card_t *card, const char *what, unsigned which, u64 *out) {
    char key[64];
    snprintf(key, sizeof key, "%s.%u", what, which);
    return number(index_of(card), key, out);
}

#define NUMBERED(function, type, what)                                                             \
    int function(const card_t *card, unsigned which, type *out) {                                  \
        u64 value = 0;                                                                             \
        BEGIN(index_of(card));                                                                     \
        int result = numbered(card, what, which, &value);                                          \
        if (result == SUCCESS)                                                                     \
            *out = (type)value;                                                                    \
        return result;                                                                             \
    }

NUMBERED(nvmlDeviceGetTemperature, unsigned, "temperature")
NUMBERED(nvmlDeviceGetClockInfo, unsigned, "clock")
NUMBERED(nvmlDeviceGetPcieThroughput, unsigned, "throughput")

typedef struct { u64 reference, violation; } violation_t;

int nvmlDeviceGetViolationStatus(const card_t *card, unsigned policy, violation_t *out) {
    BEGIN(index_of(card));
    out->reference = 0;
    return numbered(card, "violation", policy, &out->violation);
}

int nvmlDeviceGetRemappedRows(
    const card_t *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
    unsigned *failed
) {
    char words[LINE];
    BEGIN(index_of(card));
    if (!text(index_of(card), "rows", words))
        return NOT_SUPPORTED;
    sscanf(words, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(const card_t *card, unsigned type, unsigned counter, u64 *out) {
    BEGIN(index_of(card));
    (void)counter;
    return numbered(card, "ecc", type, out);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    int result;
    union { double d; unsigned u; u64 ull; } value;
} field_t;

int nvmlDeviceGetFieldValues(const card_t *card, int count, field_t *out) {
    BEGIN(index_of(card));
    for (int i = 0; i < count; i++) {
        u64 value = 0;
        out[i].result = numbered(card, "field", out[i].field, &value);
        out[i].type = 1;
        out[i].value.u = (unsigned)value;
    }
    return SUCCESS;
}

/* -- processes --------------------------------------------------------------------------------- */

typedef struct { unsigned pid; u64 bytes; unsigned instance, compute_instance; } process_t;

/* A list is words of PID:BYTES; BYTES may be "none". */
static int list(
    const card_t *card, const char *function, const char *key, unsigned *count, process_t *out
) {
    char words[LINE], *rest = NULL;
    unsigned have = 0;
    if (!text(index_of(card), key, words))
        return NOT_SUPPORTED;
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *bytes = strchr(word, ':') + 1;
        if (out && have < *count) {
            out[have].pid = (unsigned)strtoul(word, NULL, 10);
            out[have].bytes = strcmp(bytes, "none") ? strtoull(bytes, NULL, 10) : ~0ull;
            out[have].instance = out[have].compute_instance = ~0u;
        }
        have++;
    }
    int small = have > *count || (out && raced(index_of(card), function));
    *count = have;
    return small ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(function, key)                                                                   \
    int function(const card_t *card, unsigned *count, process_t *out) {                            \
        BEGIN(index_of(card));                                                                     \
        return list(card, __func__, key, count, out);                                              \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

typedef struct { unsigned pid; u64 at_us; unsigned sm, memory, encoder, decoder; } sample_t;

/* samples: words of PID:MICROSECONDS:SM_PERCENT. zero_samples: success, and nothing in it. */
int nvmlDeviceGetProcessUtilization(
    const card_t *card, sample_t *out, unsigned *count, u64 since_us
) {
    char words[LINE], *rest = NULL;
    unsigned have = 0;
    int i = index_of(card);
    BEGIN(i);
    if (!text(i, "samples", words))
        return NOT_SUPPORTED;
    if (number_or(i, "zero_samples", 0)) {
        *count = 0;
        return SUCCESS;
    }
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        sample_t sample = {0};
        sscanf(word, "%u:%llu:%u", &sample.pid, &sample.at_us, &sample.sm);
        if (sample.at_us <= since_us)
            continue;
        if (out && have < *count)
            out[have] = sample;
        have++;
    }
    if (!have)
        return NOT_FOUND;
    int small = !out || have > *count || raced(i, __func__);
    *count = have;
    return small ? INSUFFICIENT_SIZE : SUCCESS;
}

/* -- events ------------------------------------------------------------------------------------ */

typedef struct { int registered[MAX_CARDS]; unsigned seen; } set_t;
typedef struct {
    const card_t *card;
    u64 type, data;
    unsigned instance, compute_instance;
} event_t;

int nvmlEventSetCreate(set_t **out) {
    BEGIN(DRIVER);
    *out = calloc(1, sizeof **out);
    return *out ? SUCCESS : MEMORY;
}

int nvmlEventSetFree(set_t *set) {
    BEGIN(DRIVER);
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(const card_t *card, u64 types, set_t *set) {
    BEGIN(index_of(card));
    set->registered[index_of(card)] = (types & 8) != 0;
    return SUCCESS;
}

/* events: words of CARD:XID, to which a test appends; each is told once to each set. */
int nvmlEventSetWait_v2(set_t *set, event_t *out, unsigned timeout_ms) {
    for (unsigned waited_ms = 0;; waited_ms += 10) {
        char words[LINE] = "", *rest = NULL;
        unsigned at = 0;
        BEGIN(DRIVER);
        text(DRIVER, "events", words);
        for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
            int card = atoi(word);
            if (at++ < set->seen)
                continue;
            set->seen = at;
            if (!set->registered[card])
                continue;
            memset(out, 0, sizeof *out);
            out->card = &cards[card];
            out->type = 8;
            out->data = strtoull(strchr(word, ':') + 1, NULL, 10);
            return SUCCESS;
        }
        if (waited_ms >= timeout_ms)
            return TIMED_OUT;
        nap(10);
    }
}

/* -- limits of cgroups ------------------------------------------------------------------------- */

/*
 * As driver r615 keeps them, its odd sides included: a soft limit is added to every cgroup above, and
 * stays there when the cgroup is removed. They outlive the process, in a file beside the values:
 * NVML_STANDIN with ".limits", one line for each cgroup, "CARD SOFT HARD PATH".
 *
 *   limits 1              the card has them
 *   cgroups PATH          the root of the cgroups
 *   used_by.PATH N        bytes that a cgroup uses
 *   lost.FUNCTION 1       say that it was done, and do nothing
 */
enum { MAX_GROUPS = 8192 };
static const u64 UNLIMITED = ~0ULL;
typedef struct { int card; u64 soft, hard; char path[512]; } group_t;
static group_t groups[MAX_GROUPS];
static int group_count;

static int is_folder(const char *path) {
    struct stat found;
    return !stat(path, &found) && S_ISDIR(found.st_mode);
}

static const char *beside(const char *suffix) {
    static char paths[4][LINE];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, LINE, "%s%s", getenv("NVML_STANDIN"), suffix);
    return path;
}

static FILE *open_groups(void) {
    FILE *lock = fopen(beside(".lock"), "a");
    if (!lock || flock(fileno(lock), LOCK_EX))
        abort();
    FILE *file = fopen(beside(".limits"), "r");
    group_t next;
    for (group_count = 0; file && group_count < MAX_GROUPS;) {
        if (fscanf(file, "%d %llu %llu %511s", &next.card, &next.soft, &next.hard, next.path) != 4)
            break;
        if (is_folder(next.path)) /* what a removed cgroup had is only in those above */
            groups[group_count++] = next;
    }
    if (file)
        fclose(file);
    return lock;
}

static void close_groups(FILE *lock, int changed) {
    FILE *file = changed ? fopen(beside(".limits.new"), "w") : NULL;
    if (changed && !file)
        abort();
    for (int i = 0; file && i < group_count; i++)
        fprintf(file, "%d %llu %llu %s\n", groups[i].card, groups[i].soft, groups[i].hard,
                groups[i].path);
    if (file && (fclose(file) || rename(beside(".limits.new"), beside(".limits"))))
        abort();
    fclose(lock);
}

static group_t *group_of(int card, const char *path) {
    for (int i = 0; i < group_count; i++)
        if (groups[i].card == card && !strcmp(groups[i].path, path))
            return &groups[i];
    group_t *made = &groups[group_count < MAX_GROUPS - 1 ? group_count++ : group_count];
    made->card = card;
    made->soft = 0;
    made->hard = UNLIMITED;
    snprintf(made->path, sizeof made->path, "%s", path);
    return made;
}

static u64 used_by(int card, const char *path) {
    char key[640];
    snprintf(key, sizeof key, "used_by.%s", path);
    return number_or(card, key, 0);
}

typedef struct { const char *group; u64 soft, hard; } set_limits_t;
typedef struct { const char *group; u64 soft, hard, used; } get_limits_t;

int nvmlDeviceSetMemoryLimits_v1(const card_t *card, const set_limits_t *in) {
    int i = index_of(card);
    char root[LINE] = "", above[512];
    BEGIN(i);
    if (!number_or(i, "limits", 0))
        return NOT_SUPPORTED;
    if (!is_folder(in->group))
        return NOT_FOUND;
    if (number_or(i, "lost.nvmlDeviceSetMemoryLimits_v1", 0))
        return SUCCESS;
    if (used_by(i, in->group) > in->hard)
        return IN_USE;
    text(i, "cgroups", root);
    FILE *file = open_groups();
    u64 added = in->soft - group_of(i, in->group)->soft;
    group_of(i, in->group)->soft = in->soft;
    group_of(i, in->group)->hard = in->hard;
    snprintf(above, sizeof above, "%s", in->group);
    for (char *end = strrchr(above, '/'); end; end = strrchr(above, '/')) {
        *end = 0;
        if (strlen(above) <= strlen(root))
            break;
        group_of(i, above)->soft += added;
    }
    close_groups(file, 1);
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(const card_t *card, get_limits_t *out) {
    int i = index_of(card);
    BEGIN(i);
    if (!number_or(i, "limits", 0))
        return NOT_SUPPORTED;
    if (!is_folder(out->group))
        return NOT_FOUND;
    FILE *file = open_groups();
    group_t *found = group_of(i, out->group);
    out->soft = found->soft;
    out->hard = found->hard;
    out->used = used_by(i, out->group);
    close_groups(file, 0);
    return SUCCESS;
}

/* -- GPM --------------------------------------------------------------------------------------- */

typedef struct { int card; } gpm_sample_t;
typedef struct { unsigned version, supported; } gpm_support_t;
typedef struct {
    unsigned id;
    int result;
    double value;
    const char *name, *long_name, *unit;
} gpm_metric_t;
typedef struct {
    unsigned version, count;
    gpm_sample_t *first, *second;
    gpm_metric_t metrics[];
} gpm_get_t;

int nvmlGpmQueryDeviceSupport(const card_t *card, gpm_support_t *out) {
    BEGIN(index_of(card));
    out->supported = (unsigned)number_or(index_of(card), "gpm", 0);
    return SUCCESS;
}

int nvmlGpmSampleAlloc(gpm_sample_t **out) {
    BEGIN(DRIVER);
    *out = calloc(1, sizeof **out);
    live_samples++;
    return *out ? SUCCESS : MEMORY;
}

int nvmlGpmSampleFree(gpm_sample_t *sample) {
    BEGIN(DRIVER);
    free(sample);
    live_samples--;
    return SUCCESS;
}

int nvmlGpmSampleGet(const card_t *card, gpm_sample_t *sample) {
    BEGIN(index_of(card));
    sample->card = index_of(card);
    return SUCCESS;
}

/* gpm.ID: a number. */
int nvmlGpmMetricsGet(gpm_get_t *get) {
    BEGIN(get->first->card);
    if (get->first->card != get->second->card)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->count; i++) {
        char key[64], value[LINE];
        snprintf(key, sizeof key, "gpm.%u", get->metrics[i].id);
        int found = text(get->first->card, key, value);
        get->metrics[i].result = found ? SUCCESS : NOT_SUPPORTED;
        if (found)
            get->metrics[i].value = strtod(value, NULL);
    }
    return SUCCESS;
}
