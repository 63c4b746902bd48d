/* What a pod would leave on each node, and what that costs: options.py and policy.py are the same in
 * Python, to the bit. */

#include "options.h"

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

/* Return the best option of a node and write its cost: the first of equal ones, and one that is not
 * known, NaN, only where no other is. -1 if there is none. Sets *unknown* if any is not known. */
static i64 cheapest(const struct nodes *nodes, const struct options *options,
                    const struct prices *prices, i64 gpu_milli, i64 row, double *cost, int *unknown)
{
    i64 model = nodes->model[row], best = -1;
    i64 step = steps_reached(prices->cpu_steps, prices->steps, nodes->cpu_milli[row] - options->cpu_milli);
    const double *worth = prices->worth + (model * (prices->steps + 1) + step) * (CARDS + 1);
    double now = prices->cost_now[row] - prices->idle * (double)prices->idle_milli[row];
    double part = prices->by_model[model] * (double)gpu_milli;
    i64 end = (row + 1) * options->each;
    for (i64 at = next_option(options, row * options->each, end); at < end;
         at = next_option(options, at + 1, end)) {
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
 * *accepts* ([model]) to *fitting*, and find their options. Mark the model of each of *rows* in the
 * options' *asked*. If every option is known, write what fracgpu_costs does. *told* gets how many
 * entries that has, -1 if some option is not known, and how many models are marked anew. Returns how
 * many are *fitting*. */
__attribute__((visibility("default")))
i64 fracgpu_rank(const struct nodes *nodes, const struct states *states,
                 const struct options *options, const struct prices *prices, i64 gpu_milli,
                 i64 memory_mib, const i8 *accepts, const i64 *rows, i64 count, i64 *fitting,
                 i64 *row_of, double *cost, i64 *card, i64 *told)
{
    i64 found = 0, known = 0, marked = 0;
    int unknown = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        if (!is_row(nodes, options, row) || (i > 0 && row <= rows[i - 1]))
            return -1;
        i64 model = nodes->model[row];
        marked += !options->asked[model];
        options->asked[model] = 1;
        if (nodes->cpu_milli[row] < options->cpu_milli || nodes->memory_mib[row] < memory_mib ||
            !accepts[model])
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
    told[0] = unknown ? -1 : known;
    told[1] = marked;
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
        set_cost(nodes, prices, standing, row);
        found++;
    }
    return found;
}
