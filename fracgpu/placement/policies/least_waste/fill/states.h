/* What states.c and options.c share: the tables of card_states.py. */

typedef unsigned long long u64;
typedef long long i64;
typedef short i16;
typedef signed char i8;
typedef int i32;

/* As card_states.py and node_matrix.py have them. */
enum { WAYS = 4, CPU_STEP_MILLI = 1000, TOP_CORES = 256, LEVELS = 1001, CARDS = 32 };

/* The tables of CardStates: entries and their values, [set, way], and the next way of each set; the
 * tables of cards are [model, level]. */
struct states {
    u64 *names;
    float *values;
    unsigned char *next;
    i64 bits;
    const u64 *card_names;
    const i16 *lost_milli;
    const u64 *model_names;
    i64 models;
};

/* How many of the CPU steps, which ascend, are not above *cpu*. A mix may have a thousand, and which
 * half it is cannot be foretold, so this has no branches. */
static inline i64 steps_reached(const i64 *cpu_steps, i64 steps, i64 cpu)
{
    const i64 *from = cpu_steps;
    while (steps > 1) {
        i64 half = steps / 2;
        from += from[half - 1] <= cpu ? half : 0;
        steps -= half;
    }
    return from - cpu_steps + (steps == 1 && *from <= cpu);
}

/* The value of an entry, NaN where there is none. */
static inline float value_of(const u64 *names, const float *values, i64 bits, u64 entry)
{
    u64 set = (entry >> (64 - bits)) * WAYS;
    for (u64 at = set; at < set + WAYS; at++)
        if (names[at] == entry)
            return values[at];
    return __builtin_nanf("");
}

/* SplitMix64's finaliser, see card_states.py. */
static inline u64 entry_of(u64 name, i64 step)
{
    u64 found = name + ((u64)step + 1) * 0x9E3779B97F4A7C15u;
    found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9u;
    found = (found ^ found >> 27) * 0x94D049BB133111EBu;
    return (found ^ found >> 31) | 1;
}

/* The whole cores below, and how far the CPU is on the way to the next, 0 to 1. */
static inline i64 step_of(i64 cpu_milli, float *part)
{
    i64 step = cpu_milli / CPU_STEP_MILLI;
    step = step < TOP_CORES ? step : TOP_CORES;
    i64 rest = cpu_milli - step * CPU_STEP_MILLI;
    *part = (float)(rest < CPU_STEP_MILLI ? rest : CPU_STEP_MILLI) / CPU_STEP_MILLI;
    return step;
}

/* The waste of a state, interpolated between two steps of CPU; NaN where one is not known. */
static inline float known_waste(const u64 *names, const float *values, i64 bits, u64 state,
                                i64 cpu_milli)
{
    float part;
    i64 step = step_of(cpu_milli, &part);
    float low = value_of(names, values, bits, entry_of(state, step));
    float high = value_of(names, values, bits, entry_of(state, step + 1));
    return low + (high - low) * part;
}
