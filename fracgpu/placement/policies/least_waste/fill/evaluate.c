/* Finds the states that have to be evaluated, and keeps what was: card_states.py and
 * unknown_options.py are the same in Python, to the bit.
 *
 * What is not known is looked for first, then Python has it evaluated, and what was found is written
 * where it belongs. */

#include "options.h"

/* As card_states.py has them. */
enum { FEW = 8, FIRST_NEIGHBOUR = -2, LAST_NEIGHBOUR = 3 };
enum { NEIGHBOURS = LAST_NEIGHBOUR - FIRST_NEIGHBOUR + 1 };

/* Question of compiled_evaluation.py: states, [state] or [state, width], and what has to be evaluated
 * of them, [entry]. *places* is a hash table of the entries, with a value for each. */
struct question {
    u64 *names;
    i64 *cpu_milli, *model;
    i16 *levels;
    float *low, *high, *found;
    i64 room, width;
    u64 *entries;
    i32 *entry_cpu;
    i64 *entry_model;
    i16 *entry_levels;
    i64 most; /* entries; one more may never be asked for */
    u64 *places;
    float *place_values;
    i64 place_bits;
};

/* Write the row and the option of each that is not known and has the CPU, and what its card has
 * free, 0 for a pod on several. Every option of a node of which the waste is not known counts.
 * Returns how many there are; of more than *room* the others are not written. */
__attribute__((visibility("default")))
i64 fracgpu_unknown(const struct nodes *nodes, const struct options *options,
                    const struct standing *standing, const i64 *rows, i64 count, i64 room,
                    i64 *row_of, i64 *option_of, i64 *left)
{
    i64 found = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        if (!is_row(nodes, options, row) || row >= standing->rows)
            return -1;
        if (nodes->cpu_milli[row] < options->cpu_milli)
            continue;
        int also = standing->waste_milli[row] != standing->waste_milli[row];
        i64 first = row * options->each, end = first + options->each;
        for (i64 at = next_option(options, first, end); at < end;
             at = next_option(options, at + 1, end)) {
            float waste = options->waste_milli[at];
            if (waste == waste && !also)
                continue;
            if (found < room) {
                row_of[found] = row;
                option_of[found] = at - first;
                left[found] = options->cards == 1 ? nodes->levels[row * CARDS + options->card[at]] : 0;
            }
            found++;
        }
    }
    return found;
}

/* Ask for the state of each node as it is and after its option, which follow each other from the
 * place 2 * *start* on; *lost* is what is lost after it. */
__attribute__((visibility("default")))
i64 fracgpu_pairs(const struct nodes *nodes, const struct states *states,
                  const struct options *options, const struct standing *standing, const i64 *rows,
                  const i64 *option_of, i64 count, const struct question *question, i64 start,
                  float *lost)
{
    i64 width = nodes->width;
    if (width != question->width || 2 * (start + count) > question->room)
        return -1;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i], option = option_of[i], at = 2 * (start + i);
        if (!is_row(nodes, options, row) || row >= standing->rows || option < 0 ||
            option >= options->each)
            return -1;
        const i16 *levels = nodes->levels + row * CARDS;
        i16 *now = question->levels + at * width, *after = now + width;
        struct cards cards = cards_of(states, nodes->model[row], levels, width);
        for (i64 c = 0; c < width; c++)
            now[c] = after[c] = levels[c];
        if (options->cards == 1) {
            i8 card = options->card[row * options->each + option];
            if (card < 0 || card >= width || levels[card] < options->share_milli)
                return -1;
            after[card] -= (i16)options->share_milli;
            move(&cards, states, nodes->model[row], levels[card], after[card]);
        } else {
            take_several(nodes, states, options, row, &cards, after);
        }
        question->names[at] = standing->name[row];
        question->names[at + 1] = cards.name;
        question->cpu_milli[at] = nodes->cpu_milli[row] > 0 ? nodes->cpu_milli[row] : 0;
        question->cpu_milli[at + 1] = cpu_after(nodes, options, row);
        question->model[at] = question->model[at + 1] = nodes->model[row];
        lost[start + i] = (float)cards.lost;
    }
    return count;
}

/* Return where an entry is in *places*, or where it would be. */
static inline i64 place_of(const struct question *question, u64 entry)
{
    u64 mask = ((u64)1 << question->place_bits) - 1, at = entry >> (64 - question->place_bits);
    while (question->places[at] && question->places[at] != entry)
        at = (at + 1) & mask;
    return (i64)at;
}

/* Add an entry unless it is known or there already; return how many there are. */
static i64 add_entry(const struct states *states, const struct question *question, i64 state, i64 step,
                     i64 found)
{
    u64 entry = entry_of(question->names[state], step);
    float value = value_of(states->names, states->values, states->bits, entry);
    i64 place = place_of(question, entry);
    if (value == value || question->places[place])
        return found;
    const i16 *levels = question->levels + state * question->width;
    const i16 *lost = states->lost_milli + question->model[state] * LEVELS;
    question->places[place] = question->entries[found] = entry;
    question->entry_cpu[found] = (i32)(step * CPU_STEP_MILLI);
    question->entry_model[found] = question->model[state];
    for (i64 c = 0; c < question->width; c++)
        question->entry_levels[found * question->width + c] = lost[levels[c]] ? 0 : levels[c];
    return found + 1;
}

/* Look up the first *count* states, and list what has to be evaluated, the first ones first and not
 * more than *allowed*. Where few are missing, their neighbours are listed too. Returns how many
 * entries are listed, or -1 for a model or a level that is not there. */
__attribute__((visibility("default")))
i64 fracgpu_missing(const struct states *states, const struct question *question, i64 count,
                    i64 allowed)
{
    i64 missing = 0, found = 0;
    if (count > question->room)
        return -1;
    for (i64 i = 0; i < count; i++) {
        float part;
        i64 step = step_of(question->cpu_milli[i], &part);
        u64 name = question->names[i];
        if (question->model[i] < 0 || question->model[i] >= states->models)
            return -1;
        for (i64 c = 0; c < question->width; c++)
            if (question->levels[i * question->width + c] < 0 ||
                question->levels[i * question->width + c] >= LEVELS)
                return -1;
        question->low[i] = value_of(states->names, states->values, states->bits, entry_of(name, step));
        question->high[i] =
            value_of(states->names, states->values, states->bits, entry_of(name, step + 1));
        missing += question->low[i] != question->low[i] || question->high[i] != question->high[i];
    }
    for (i64 at = 0; missing && at < (i64)1 << question->place_bits; at++)
        question->places[at] = 0;
    int few = missing <= FEW && allowed >= FEW * NEIGHBOURS;
    i64 first = few ? FIRST_NEIGHBOUR : 0, last = few ? LAST_NEIGHBOUR : 1;
    for (i64 i = 0; i < count; i++) {
        if (question->low[i] == question->low[i] && question->high[i] == question->high[i])
            continue;
        float part;
        i64 step = step_of(question->cpu_milli[i], &part);
        for (i64 at = step + first; at <= step + last; at++) {
            if (found == allowed || found == question->most)
                return found;
            i64 within = at < 0 ? 0 : at > TOP_CORES + 1 ? TOP_CORES + 1 : at;
            found = add_entry(states, question, i, within, found);
        }
    }
    return found;
}

/* Keep the *values* of the entries that were listed, and write the waste of each of *count* states to
 * *found*, interpolated between two steps of CPU; NaN where one is not known still. */
__attribute__((visibility("default")))
void fracgpu_answer(const struct states *states, const struct question *question, i64 count,
                    const float *values, i64 entries)
{
    for (i64 i = 0; i < entries; i++) {
        u64 entry = question->entries[i], set = entry >> (64 - states->bits);
        u64 at = set * WAYS + states->next[set] % WAYS;
        states->names[at] = entry;
        states->values[at] = values[i];
        states->next[set] = (states->next[set] + 1) % WAYS;
        question->place_values[place_of(question, entry)] = values[i];
    }
    for (i64 i = 0; i < count; i++) {
        float part, low = question->low[i], high = question->high[i];
        i64 step = step_of(question->cpu_milli[i], &part);
        /* Not from the table: what was kept may have gone from there again. */
        for (int up = 0; entries && up < 2; up++) {
            float *known = up ? &high : &low;
            i64 place = place_of(question, entry_of(question->names[i], step + up));
            if (*known != *known && question->places[place])
                *known = question->place_values[place];
        }
        question->found[i] = low + (high - low) * part;
    }
}

/* Write what *question* has found: of the nodes as they are, with their costs, and of their options.
 * Returns how many of both are not known still. */
__attribute__((visibility("default")))
i64 fracgpu_know(const struct nodes *nodes, const struct options *options,
                 const struct prices *prices, const struct standing *standing, const i64 *rows,
                 const i64 *option_of, i64 count, const struct question *question, i64 start,
                 const float *lost)
{
    i64 unknown = 0;
    if (2 * (start + count) > question->room)
        return -1;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i];
        float now = question->found[2 * (start + i)], after = question->found[2 * (start + i) + 1];
        if (!is_row(nodes, options, row) || row >= standing->rows || option_of[i] < 0 ||
            option_of[i] >= options->each)
            return -1;
        unknown += (now != now) + (after != after);
        if (now == now) {
            standing->waste_milli[row] = now + standing->lost[row];
            set_cost(nodes, prices, standing, row);
        }
        if (after == after)
            options->waste_milli[row * options->each + option_of[i]] = after + lost[start + i];
    }
    return unknown;
}
