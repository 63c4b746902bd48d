/* What a pod would leave on each node, and what that costs: options.py and policy.py are the same in
 * Python, to the bit.
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

/* The tables of CardStates. */
struct states {
    const u64 *names;
    const float *values;
    i64 bits;
    const u64 *card_names;
    const i16 *lost_milli;
    const u64 *model_names;
};

/* PlacementOptions: what one kind of pods requests, and its options; *seen* is [row], the other
 * arrays are [row, option]. */
struct options {
    i64 cards, share_milli, cpu_milli;
    i64 *seen;
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

static void put_option(const struct nodes *nodes, const struct states *states,
                       const struct options *options, i64 row, i64 option, i8 card,
                       const struct cards *after)
{
    i64 at = row * options->each + option;
    options->card[at] = card;
    options->idle_cards[at] = (i8)after->idle;
    options->waste_milli[at] =
        known_waste(states->names, states->values, states->bits, after->name,
                    cpu_after(nodes, options, row)) +
        (float)after->lost;
}

static void find_options(const struct nodes *nodes, const struct states *states,
                         const struct options *options, i64 row)
{
    const i16 *levels = nodes->levels + row * CARDS;
    i64 model = nodes->model[row];
    struct cards now = cards_of(states, model, levels, nodes->width), after = now;
    for (i64 option = 0; option < options->each; option++)
        options->idle_cards[row * options->each + option] = -1;
    if (options->cards != 1) {
        if (take_several(nodes, states, options, row, &after, 0))
            put_option(nodes, states, options, row, 0, -1, &after);
        return;
    }
    i8 order[CARDS];
    sort_cards(levels, nodes->width, order);
    for (i64 c = 0; c < nodes->width; c++) {
        i16 level = levels[order[c]];
        if (level < options->share_milli || (c > 0 && level == levels[order[c - 1]]))
            continue; /* of equal cards the first */
        after = now;
        move(&after, states, model, level, (i16)(level - options->share_milli));
        put_option(nodes, states, options, row, c, order[c], &after);
    }
}

/* Find the options of those *rows* that have changed. */
__attribute__((visibility("default")))
i64 fracgpu_options(const struct nodes *nodes, const struct states *states,
                    const struct options *options, const i64 *rows, i64 count)
{
    i64 found = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        if (!is_row(nodes, options, row))
            return -1;
        if (nodes->changed[row] <= options->seen[row])
            continue;
        options->seen[row] = nodes->changed[row];
        find_options(nodes, states, options, row);
        found++;
    }
    return found;
}

/* Write the row and the option of each that is not known and has the CPU, and what its card has
 * free, 0 for a pod on several. Every option of the rows that are *also* given counts as unknown.
 * Without *row_of* they are only counted. */
__attribute__((visibility("default")))
i64 fracgpu_unknown(const struct nodes *nodes, const struct options *options, const i64 *rows,
                    const i8 *also, i64 count, i64 *row_of, i64 *option_of, i64 *left)
{
    i64 found = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        if (!is_row(nodes, options, row))
            return -1;
        if (nodes->cpu_milli[row] < options->cpu_milli)
            continue;
        for (i64 option = 0; option < options->each; option++) {
            i64 at = row * options->each + option;
            float waste = options->waste_milli[at];
            if (options->idle_cards[at] < 0 || (waste == waste && !also[i]))
                continue;
            found++;
            if (!row_of)
                continue;
            row_of[found - 1] = row;
            option_of[found - 1] = option;
            left[found - 1] = options->cards == 1 ? nodes->levels[row * CARDS + options->card[at]] : 0;
        }
    }
    return found;
}

/* Write state, loss, CPU and levels [option, width] after each of some options. */
__attribute__((visibility("default")))
i64 fracgpu_after(const struct nodes *nodes, const struct states *states,
                  const struct options *options, const i64 *rows, const i64 *option_of, i64 count,
                  u64 *names, float *lost, i64 *cpu_milli, i16 *after)
{
    i64 width = nodes->width;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i], option = option_of[i];
        if (!is_row(nodes, options, row) || option < 0 || option >= options->each)
            return -1;
        const i16 *levels = nodes->levels + row * CARDS;
        struct cards cards = cards_of(states, nodes->model[row], levels, width);
        if (options->cards == 1) {
            i8 card = options->card[row * options->each + option];
            if (card < 0 || card >= width || levels[card] < options->share_milli)
                return -1;
            for (i64 c = 0; c < width; c++)
                after[i * width + c] = levels[c];
            after[i * width + card] -= (i16)options->share_milli;
            move(&cards, states, nodes->model[row], levels[card], after[i * width + card]);
        } else {
            take_several(nodes, states, options, row, &cards, after + i * width);
        }
        names[i] = cards.name;
        lost[i] = (float)cards.lost;
        cpu_milli[i] = cpu_after(nodes, options, row);
    }
    return count;
}

/* How many of the CPU steps, which ascend, are not above *cpu*. A mix may have a thousand. */
static inline i64 steps_reached(const struct prices *prices, i64 cpu)
{
    i64 low = 0, high = prices->steps;
    while (low < high) {
        i64 middle = low + (high - low) / 2;
        if (prices->cpu_steps[middle] <= cpu)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return the best option of a node and write its cost: the first of equal ones, and one that is not
 * known, NaN, only where no other is. -1 if there is none. Sets *unknown* if any is not known. */
static i64 cheapest(const struct nodes *nodes, const struct options *options,
                    const struct prices *prices, i64 gpu_milli, i64 row, double *cost, int *unknown)
{
    i64 model = nodes->model[row], best = -1;
    i64 step = steps_reached(prices, nodes->cpu_milli[row] - options->cpu_milli);
    const double *worth = prices->worth + (model * (prices->steps + 1) + step) * (CARDS + 1);
    double now = prices->cost_now[row] - prices->idle * (double)prices->idle_milli[row];
    double part = prices->by_model[model] * (double)gpu_milli;
    for (i64 at = row * options->each; at < (row + 1) * options->each; at++) {
        if (options->idle_cards[at] < 0)
            continue;
        double rise = (double)options->waste_milli[at] - worth[options->idle_cards[at]];
        rise -= now;
        rise += part;
        *unknown |= rise != rise;
        if (best < 0 || rise < *cost || (*cost != *cost && rise == rise)) {
            best = at;
            *cost = rise;
        }
    }
    return best;
}

/* Write each node with an option, ascending as *rows* are, and the cost and the card of its best
 * one. */
__attribute__((visibility("default")))
i64 fracgpu_costs(const struct nodes *nodes, const struct options *options,
                  const struct prices *prices, i64 gpu_milli, const i64 *rows, i64 count,
                  i64 *row_of, double *cost, i64 *card)
{
    i64 found = 0;
    int unknown = 0;
    for (i64 i = 0; i < count; i++) {
        if (!is_row(nodes, options, rows[i]))
            return -1;
        i64 best = cheapest(nodes, options, prices, gpu_milli, rows[i], cost + found, &unknown);
        if (best < 0)
            continue;
        row_of[found] = rows[i];
        card[found] = options->card[best];
        found++;
    }
    return found;
}

/* Write those of *rows*, which ascend, that have the CPU, the memory and a model that the pod
 * *accepts* ([model]) to *fitting*, and find their options. Mark the model of each of *rows* in
 * *asked*. If every option is known, write what fracgpu_costs does, and to *ranked* how many
 * entries that has; else *ranked* is -1. Returns how many are *fitting*. */
__attribute__((visibility("default")))
i64 fracgpu_rank(const struct nodes *nodes, const struct states *states,
                 const struct options *options, const struct prices *prices, i64 gpu_milli,
                 i64 memory_mib, const i8 *accepts, i8 *asked, const i64 *rows, i64 count, i64 *fitting, i64 *row_of, double *cost,
                 i64 *card, i64 *ranked)
{
    i64 found = 0, known = 0;
    int unknown = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        if (!is_row(nodes, options, row) || (i > 0 && row <= rows[i - 1]))
            return -1;
        asked[nodes->model[row]] = 1;
        if (nodes->cpu_milli[row] < options->cpu_milli || nodes->memory_mib[row] < memory_mib ||
            !accepts[nodes->model[row]])
            continue;
        fitting[found++] = row;
        if (nodes->changed[row] > options->seen[row]) {
            options->seen[row] = nodes->changed[row];
            find_options(nodes, states, options, row);
        }
        if (unknown)
            continue;
        i64 best = cheapest(nodes, options, prices, gpu_milli, row, cost + known, &unknown);
        if (best >= 0) {
            row_of[known] = row;
            card[known++] = options->card[best];
        }
    }
    *ranked = unknown ? -1 : known;
    return found;
}

/* Find the state of each node that has changed since *moment*, and what is wasted of it. */
__attribute__((visibility("default")))
i64 fracgpu_nodes(const struct nodes *nodes, const struct states *states,
                  const struct standing *standing, i64 moment)
{
    i64 found = 0;
    if (standing->rows < nodes->rows)
        return -1;
    for (i64 row = 0; row < nodes->rows; row++) {
        if (nodes->changed[row] <= moment)
            continue;
        const i16 *levels = nodes->levels + row * CARDS;
        struct cards cards = cards_of(states, nodes->model[row], levels, nodes->width);
        i64 cpu = nodes->cpu_milli[row] > 0 ? nodes->cpu_milli[row] : 0, sum = 0;
        for (i64 c = 0; c < nodes->width; c++)
            sum += levels[c];
        standing->name[row] = cards.name;
        standing->lost[row] = (float)cards.lost;
        standing->waste_milli[row] =
            (float)cards.lost +
            known_waste(states->names, states->values, states->bits, cards.name, cpu);
        standing->idle_cards[row] = cards.idle;
        standing->idle_milli[row] = sum;
        found++;
    }
    return found;
}

/* Set the cost of each node that has changed since *moment*. */
__attribute__((visibility("default")))
i64 fracgpu_node_costs(const struct nodes *nodes, const struct prices *prices,
                       const struct standing *standing, i64 moment)
{
    i64 found = 0;
    if (standing->rows < nodes->rows)
        return -1;
    for (i64 row = 0; row < nodes->rows; row++) {
        if (nodes->changed[row] <= moment)
            continue;
        i64 cpu = nodes->cpu_milli[row] > 0 ? nodes->cpu_milli[row] : 0;
        i64 step = nodes->model[row] * (prices->steps + 1) + steps_reached(prices, cpu);
        standing->cost[row] = (double)standing->waste_milli[row] -
                              prices->worth[step * (CARDS + 1) + standing->idle_cards[row]];
        found++;
    }
    return found;
}
