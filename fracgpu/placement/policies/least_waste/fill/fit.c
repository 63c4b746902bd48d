/* On which nodes a container fits, and how tightly: fit_index.py is the same in Python, to the bit.
 *
 * A row is a node of NodeMatrix; its arrays are [row] or [row, column]. */

typedef long long i64;
typedef signed char i8;

/* As node_matrix.py and fit_index.py have them. */
enum { SHARES = 0, USABLE = 0, ABSENT = 9, TOO_FEW_CARDS = 5 };
enum { WRONG_MODEL = 3, WRONG_CLASS, TOO_LITTLE_FREE, TOO_FEW_CORES, NO_FREE_SLOT };
enum { WHOLE_BITS = 4, COUNT_BITS = 7, MOST_COLUMNS = 127 };

struct matrix {
    const i8 *node_state, *state, *avoided;
    const i64 *free_mib, *capacity_mib, *free_cores, *free_slots, *model, *changed;
    i64 rows, width; /* rows: in use */
};

/* *share_of* parts of so many are what the container requests of a card; 0 of 0 if it says MiB. */
struct request {
    const i8 *allowed; /* [model] */
    i64 models, cards, mib, cores, share_of, parts;
};

/* FitResult: what is found, [row]. */
struct result {
    i64 *verdict;
    double *score;
    i8 *avoided;
    i64 rows;
};

static inline i64 floor_div(i64 number, i64 by)
{
    return number / by - (number % by < 0);
}

static i64 reason_of(const struct matrix *matrix, const struct request *request, i64 at)
{
    if (matrix->state[at] != USABLE)
        return matrix->state[at];
    if (!request->allowed[matrix->model[at]])
        return WRONG_MODEL;
    if (request->parts &&
        -floor_div(-request->share_of * matrix->capacity_mib[at], request->parts) != request->mib)
        return WRONG_CLASS;
    if (request->mib > matrix->free_mib[at])
        return TOO_LITTLE_FREE;
    if (request->cores > matrix->free_cores[at])
        return TOO_FEW_CORES;
    return matrix->free_slots[at] < 1 ? NO_FREE_SLOT : USABLE;
}

/* Return the mean score of the best cards, by the policy pack; cards that are avoided come last,
 * and *avoided* is set if one of them is taken. *order* has the cards that fit, best first. */
static double score_of(const double *score, const i64 *order, const i8 *avoids, i64 cards, i8 *avoided)
{
    double total = 0;
    for (i64 card = 0; card < cards; card++) {
        total += score[order[card]];
        *avoided |= avoids[order[card]];
    }
    total /= (double)cards;
    return total < 0 ? 0 : total > 1 ? 1 : total;
}

/* Write the verdict, the score and whether an avoided card is taken of each row that has changed since
 * *moment*. Returns -1 for a row or a model that is not there, else 0. */
__attribute__((visibility("default")))
i64 fracgpu_fit(const struct matrix *matrix, const struct request *request,
                const struct result *result, i64 moment)
{
    i64 *verdict = result->verdict;
    if (matrix->width > MOST_COLUMNS || request->cards < 1 || result->rows < matrix->rows)
        return -1;
    for (i64 row = 0; row < matrix->rows; row++) {
        if (matrix->changed[row] <= moment)
            continue;
        i64 first = row * matrix->width, fitting = 0, found = 0, cards = 0;
        i64 order[MOST_COLUMNS];
        double each[MOST_COLUMNS];
        result->score[row] = 0;
        result->avoided[row] = 0;
        verdict[row] = matrix->node_state[row];
        if (verdict[row] != SHARES)
            continue;
        const i8 *avoids = matrix->avoided + first;
        for (i64 c = 0; c < matrix->width; c++) {
            i64 at = first + c;
            if (matrix->model[at] < 0 || matrix->model[at] >= request->models)
                return -1;
            i64 reason = reason_of(matrix, request, at);
            cards += reason != ABSENT;
            if (reason != USABLE) {
                if (reason != ABSENT)
                    found += 1LL << (WHOLE_BITS + COUNT_BITS * reason);
                continue;
            }
            i64 capacity = matrix->capacity_mib[at] > 1 ? matrix->capacity_mib[at] : 1;
            each[c] = 1.0 - (double)(matrix->free_mib[at] - request->mib) / (double)capacity;
            i64 to = fitting++;
            for (; to > 0; to--) {
                i64 other = order[to - 1];
                if (avoids[other] < avoids[c] ||
                    (avoids[other] == avoids[c] && each[other] >= each[c]))
                    break;
                order[to] = other;
            }
            order[to] = c;
        }
        if (fitting < request->cards)
            verdict[row] = found + (cards << WHOLE_BITS) + (fitting ? TOO_FEW_CARDS : 0);
        else
            result->score[row] =
                score_of(each, order, avoids, request->cards, result->avoided + row);
    }
    return 0;
}
