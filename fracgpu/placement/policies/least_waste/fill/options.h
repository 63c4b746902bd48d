/* The arrays that options.c and evaluate.c work on, where NumPy has them.
 *
 * A row is a node of FreeResourceTable. Each function returns how many entries it has written, or
 * -1 for a row that is not there; then it may have written some of them.
 */

#include "states.h"

/* FreeResourceTable; the arrays are [row], *levels* is [row, CARDS]. */
struct nodes {
    const i64 *model, *cpu_milli, *memory_mib, *changed;
    const i16 *levels;
    i64 rows, width; /* width: no row has a card beyond */
};

/* PlacementOptions: what one kind of pods requests, and its options; *seen* is [row], the other
 * arrays but *asked* are [row, option]. */
struct options {
    i64 cards, share_milli, cpu_milli;
    i64 *seen;
    i8 *asked; /* [model] */
    i8 *idle_cards, *card;
    float *waste_milli;
    i64 rows, each; /* each: options of a row */
};

/* NodeCosts: each node as it is; the arrays are [row]. */
struct standing {
    u64 *name;
    float *lost, *waste_milli;
    i64 *idle_cards, *idle_milli;
    double *cost;
    i64 rows;
};

/* What counts beside the waste; the arrays are [row], but for *worth*, which is
 * [model, CPU steps reached, idle cards], *cpu_steps*, which ascend, and *by_model*. */
struct prices {
    const double *worth;
    const i64 *cpu_steps;
    i64 steps;
    const double *by_model;
    const double *cost_now;
    const i64 *idle_milli;
    double idle; /* weight of idle_milli */
};

static inline int is_row(const struct nodes *nodes, const struct options *options, i64 row)
{
    return row >= 0 && row < nodes->rows && row < options->rows;
}

/* Write the cards of a node to *order*, the tightest first, of equal ones the first. */
static void sort_cards(const i16 *levels, i64 width, i8 *order)
{
    for (i64 c = 0; c < width; c++) {
        i64 at = c;
        for (; at > 0 && levels[order[at - 1]] > levels[c]; at--)
            order[at] = order[at - 1];
        order[at] = (i8)c;
    }
}

/* The CPU that is left once the pod runs, and 0 where it does not fit. */
static inline i64 cpu_after(const struct nodes *nodes, const struct options *options, i64 row)
{
    i64 left = nodes->cpu_milli[row] - options->cpu_milli;
    return left > 0 ? left : 0;
}

/* A node's cards while pods are put on them: their state, what is lost, and how many are idle. */
struct cards {
    u64 name;
    i64 lost, idle;
};

static inline void move(struct cards *cards, const struct states *states, i64 model, i16 from, i16 to)
{
    const u64 *names = states->card_names + model * LEVELS;
    const i16 *lost = states->lost_milli + model * LEVELS;
    cards->name += names[to] - names[from];
    cards->lost += lost[to] - lost[from];
    cards->idle += (to == LEVELS - 1) - (from == LEVELS - 1);
}

static struct cards cards_of(const struct states *states, i64 model, const i16 *levels, i64 width)
{
    struct cards found = {states->model_names[model], 0, 0};
    for (i64 c = 0; c < width; c++) {
        i64 at = model * LEVELS + levels[c];
        found.name += states->card_names[at];
        found.lost += states->lost_milli[at];
        found.idle += levels[c] == LEVELS - 1;
    }
    return found;
}

/* The least that a card has to have free for a pod on several cards, or on none. */
static inline i64 least_for_several(const struct options *options)
{
    return options->share_milli > 1 ? options->share_milli : 1;
}

/* Take the tightest cards for a pod on several; report whether there are enough. With *after* the
 * levels are written to it, [card] in order of tightness. */
static int take_several(const struct nodes *nodes, const struct states *states,
                        const struct options *options, i64 row, struct cards *cards, i16 *after)
{
    const i16 *levels = nodes->levels + row * CARDS;
    i8 order[CARDS];
    i64 taken = 0;
    sort_cards(levels, nodes->width, order);
    for (i64 c = 0; c < nodes->width; c++) {
        i16 level = levels[order[c]], left = level;
        if (level >= least_for_several(options) && taken < options->cards) {
            taken++;
            left = (i16)(level - options->share_milli);
            move(cards, states, nodes->model[row], level, left);
        }
        if (after)
            after[c] = left;
    }
    return taken == options->cards;
}


static inline void set_cost(const struct nodes *nodes, const struct prices *prices,
                            const struct standing *standing, i64 row)
{
    i64 cpu = nodes->cpu_milli[row] > 0 ? nodes->cpu_milli[row] : 0;
    i64 step = nodes->model[row] * (prices->steps + 1) +
               steps_reached(prices->cpu_steps, prices->steps, cpu);
    standing->cost[row] = (double)standing->waste_milli[row] -
                          prices->worth[step * (CARDS + 1) + standing->idle_cards[row]];
}

/* Return the place of the first option from *at* on, and *end* if there is none before. Most nodes have
 * few, so eight places are looked at together, each a byte that is negative where there is none. */
static inline i64 next_option(const struct options *options, i64 at, i64 end)
{
    while (at < end) {
        u64 eight;
        if (at + (i64)sizeof eight > options->rows * options->each) {
            if (options->idle_cards[at] >= 0)
                return at;
            at++;
            continue;
        }
        __builtin_memcpy(&eight, options->idle_cards + at, sizeof eight);
        eight = ~eight & 0x8080808080808080u;
        if (eight) { /* the lowest byte is the first one, on both kinds of processor */
            at += __builtin_ctzll(eight) / 8;
            return at < end ? at : end;
        }
        at += (i64)sizeof eight;
    }
    return end;
}
