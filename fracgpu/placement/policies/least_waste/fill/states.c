/* What is known of nodes' states: card_states.py is the same in Python. */

#include "states.h"

/* The checksum of the sources that this was compiled from: setup.py computes it. */
__attribute__((visibility("default")))
unsigned fracgpu_sources(void)
{
    static const volatile unsigned checksum = FRACGPU_SOURCES;
    return checksum;
}

/* Write the waste of each state to *found*, interpolated between two steps of CPU. */
__attribute__((visibility("default")))
void fracgpu_known(const u64 *names, const float *values, i64 bits, const u64 *states,
                   const i64 *cpu_milli, i64 count, float *found)
{
    for (i64 i = 0; i < count; i++)
        found[i] = known_waste(names, values, bits, states[i], cpu_milli[i]);
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
