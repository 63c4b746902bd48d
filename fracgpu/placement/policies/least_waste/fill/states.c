/* What is known of nodes' states: card_states.py is the same in Python. */

typedef unsigned long long u64;
typedef long long i64;
typedef short i16;

/* As card_states.py and node_matrix.py have them. */
enum { WAYS = 4, CPU_STEP_MILLI = 1000, TOP_CORES = 256, LEVELS = 1001 };

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

/* Write the value of each entry to *found*, NaN where there is none. */
__attribute__((visibility("default")))
void fracgpu_find(const u64 *names, const float *values, i64 bits, const u64 *entries, i64 count,
                  float *found)
{
    for (i64 i = 0; i < count; i++)
        found[i] = value_of(names, values, bits, entries[i]);
}

/* Write the waste of each state to *found*, interpolated between two steps of CPU. */
__attribute__((visibility("default")))
void fracgpu_known(const u64 *names, const float *values, i64 bits, const u64 *states,
                   const i64 *cpu_milli, i64 count, float *found)
{
    for (i64 i = 0; i < count; i++) {
        i64 step = cpu_milli[i] / CPU_STEP_MILLI;
        step = step < TOP_CORES ? step : TOP_CORES;
        i64 rest = cpu_milli[i] - step * CPU_STEP_MILLI;
        float part = (float)(rest < CPU_STEP_MILLI ? rest : CPU_STEP_MILLI) / CPU_STEP_MILLI;
        float low = value_of(names, values, bits, entry_of(states[i], step));
        float high = value_of(names, values, bits, entry_of(states[i], step + 1));
        found[i] = low + (high - low) * part;
    }
}

/* Write each node's state, and what of its cards is lost; *levels* is [node, card], and the tables
 * of cards are [model, level]. */
__attribute__((visibility("default")))
void fracgpu_names(const u64 *card_names, const i16 *lost_milli, const u64 *model_names,
                   const i64 *model, const i16 *levels, i64 nodes, i64 width, u64 *names, float *lost)
{
    for (i64 n = 0; n < nodes; n++) {
        u64 name = model_names[model[n]];
        i64 sum = 0;
        for (i64 c = 0; c < width; c++) {
            i64 at = model[n] * LEVELS + levels[n * width + c];
            name += card_names[at];
            sum += lost_milli[at];
        }
        names[n] = name;
        lost[n] = (float)sum; /* exact: below 2**24 */
    }
}
