/* Prices of whole idle cards: scarcity.py is the same in Python, to the bit. */

#include "states.h"

enum { COUNTS = CARDS + 1 }; /* of idle cards */

/* Scarcity. A class of pods requests *need_cards* from the CPU step *need_step* on and *accepts*
 * some models, [class, model]; *demand* is its weight. *usable* and *worth* are
 * [model, CPU steps reached, idle cards]. */
struct scarcity {
    const double *demand;
    const i64 *need_step, *need_cards;
    const i8 *accepts;
    const i64 *cpu_steps;
    double *usable, *worth;
    i64 classes, models, steps;
    double limit, weight; /* weight: of one card */
};

static inline double *cell(double *of, const struct scarcity *scarcity, i64 model, i64 step, i64 cards)
{
    return of + (model * (scarcity->steps + 1) + step) * COUNTS + cards;
}

/* Count the idle cards on nodes of a model that have reached a CPU step and have so many, or more of
 * either. Returns the sum of all idle cards, or -1 for a number that is out of range. */
static i64 count_usable(const struct scarcity *scarcity, const i64 *model, const i64 *cpu_milli,
                        const i64 *idle_cards, i64 nodes)
{
    i64 steps = scarcity->steps, total = 0;
    for (i64 at = 0; at < scarcity->models * (steps + 1) * COUNTS; at++)
        scarcity->usable[at] = 0;
    for (i64 n = 0; n < nodes; n++) {
        if (model[n] < 0 || model[n] >= scarcity->models || idle_cards[n] < 0 || idle_cards[n] > CARDS)
            return -1;
        i64 step = steps_reached(scarcity->cpu_steps, steps, cpu_milli[n]);
        *cell(scarcity->usable, scarcity, model[n], step, idle_cards[n]) += (double)idle_cards[n];
        total += idle_cards[n];
    }
    for (i64 m = 0; m < scarcity->models; m++)
        for (i64 step = steps; step >= 0; step--) {
            double *here = cell(scarcity->usable, scarcity, m, step, 0), *above = here + COUNTS;
            for (i64 c = CARDS - 1; c >= 0; c--)
                here[c] += here[c + 1];
            for (i64 c = 0; c < COUNTS && step < steps; c++)
                here[c] += above[c];
        }
    return total;
}

/* Compute *worth* again from all nodes; the arrays are [node]. Returns 0, or -1 for a model, a
 * number of idle cards or a class that is out of range. */
__attribute__((visibility("default")))
i64 fracgpu_scarcity(const struct scarcity *scarcity, const i64 *model, const i64 *cpu_milli,
                     const i64 *idle_cards, i64 nodes)
{
    i64 models = scarcity->models, steps = scarcity->steps;
    double total = (double)count_usable(scarcity, model, cpu_milli, idle_cards, nodes);
    if (total < 0)
        return -1;
    for (i64 at = 0; at < models * (steps + 1) * COUNTS; at++)
        scarcity->worth[at] = 0;
    for (i64 k = 0; k < scarcity->classes; k++) {
        i64 step = scarcity->need_step[k] + 1, cards = scarcity->need_cards[k];
        const i8 *accepts = scarcity->accepts + k * models;
        if (step < 1 || step > steps || cards < 0 || cards > CARDS)
            return -1;
        double reach = 0;
        for (i64 m = 0; m < models; m++)
            reach += accepts[m] ? *cell(scarcity->usable, scarcity, m, step, cards) : 0;
        double scarce = reach > 0 ? total / reach : __builtin_inf();
        double premium = scarce * scarce - 1.0;
        double price = scarcity->demand[k] * (premium < scarcity->limit ? premium : scarcity->limit);
        for (i64 m = 0; m < models; m++)
            if (accepts[m])
                *cell(scarcity->worth, scarcity, m, step, cards) += price;
    }
    /* A class pays at its own step and cards; sums from the start carry the price on. */
    for (i64 m = 0; m < models; m++)
        for (i64 step = 1; step <= steps; step++) {
            double *here = cell(scarcity->worth, scarcity, m, step, 0), *below = here - COUNTS;
            for (i64 c = 0; c < COUNTS; c++)
                here[c] = below[c] + here[c];
        }
    for (i64 m = 0; m < models; m++)
        for (i64 step = 0; step <= steps; step++) {
            double *here = cell(scarcity->worth, scarcity, m, step, 0), sum = here[0];
            here[0] = sum * (0 * scarcity->weight);
            for (i64 c = 1; c < COUNTS; c++) {
                sum += here[c];
                here[c] = sum * ((double)c * scarcity->weight);
            }
        }
    return 0;
}
