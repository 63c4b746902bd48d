/* The fill of nodes that fill_sequences.py tells of; numpy_fill.py is the same in Python.
 *
 * It needs no header and no library, Python's included: compiled_fill.py loads it with ctypes.
 * Each vector holds one number for each sequence. So sequences advance together, without branches.
 */

typedef unsigned short u16;
typedef short i16;
typedef int i32;
typedef long long i64;

/* As pod_sequences.py and node_matrix.py have them. */
enum {
    SEQUENCES = 32,
    CARDS = 32,
    SLOT_BITS = 5,
    WHOLE = 1000 << SLOT_BITS,
    NO_ROOM = 1 << 15,
};

typedef u16 codes __attribute__((vector_size(2 * SEQUENCES)));
typedef i16 masks __attribute__((vector_size(2 * SEQUENCES)));
typedef i32 cores __attribute__((vector_size(4 * SEQUENCES), aligned(2 * SEQUENCES)));

/* A pod on several whole cards in one sequence. */
struct several {
    i32 step, sequence, cards, cpu;
};

/* The pods for the nodes of one card model. Of each step there are two vectors, one for each pod of
 * the pair. */
struct model {
    const cores *cpu;
    const codes *share;    /* 0: only CPU; NO_ROOM: on several cards */
    const codes *on_cards; /* all bits if the pod takes a card, none if it takes only CPU */
    const u16 *least;      /* smallest share, of this step and all later ones */
    const struct several *several; /* by step */
    i64 several_count;
    i64 steps;
};

/* A node, filled by each sequence. */
struct node {
    codes cards[CARDS];
    cores cpu;
    i32 live;
};

static inline codes least_of(codes a, codes b)
{
    return __builtin_elementwise_min(a, b);
}

static inline codes chosen(codes mask, codes yes, codes no)
{
    return (yes & mask) | (no & ~mask);
}

static inline cores wide(codes mask)
{
    return __builtin_convertvector((masks)mask, cores);
}

/* Place a pod on the first whole cards of its sequence, if there are enough. */
static void take_whole(struct node *node, const struct several *pod)
{
    i32 at = pod->sequence, whole = 0, left = pod->cards;
    for (i32 c = 0; c < node->live; c++)
        whole += node->cards[c][at] >= WHOLE;
    if (whole < pod->cards || node->cpu[at] < pod->cpu)
        return;
    for (i32 c = 0; left > 0; c++)
        if (node->cards[c][at] >= WHOLE) {
            node->cards[c][at] -= WHOLE;
            left--;
        }
    node->cpu[at] -= pod->cpu;
}

/* Of a pair of pods, place the one that leaves less of its card, on the tightest card with room. */
static inline void take_one(struct node *node, const cores *cpu, const codes *share,
                            const codes *on_cards)
{
    const codes none = {0};
    codes tight[2] = {~none, ~none}, runs[2], left[2];
    /* What each card would have left. Without room the difference wraps round to NO_ROOM or more. */
    for (i32 c = 0; c < node->live; c++) {
        tight[0] = least_of(tight[0], node->cards[c] - share[0]);
        tight[1] = least_of(tight[1], node->cards[c] - share[1]);
    }
    for (i32 pod = 0; pod < 2; pod++) {
        runs[pod] = (codes)(tight[pod] < NO_ROOM);
        runs[pod] &= __builtin_convertvector(node->cpu >= cpu[pod], codes);
        left[pod] = chosen(runs[pod], (tight[pod] >> SLOT_BITS) & on_cards[pod], none + NO_ROOM);
    }
    /* Of a tie the first pod runs. Whoever does not run takes nothing. */
    codes second = (codes)(left[1] < left[0]);
    codes taken = chosen(second, share[1], share[0] & runs[0]);
    codes code = chosen(second, tight[1] + share[1], tight[0] + share[0]);
    for (i32 c = 0; c < node->live; c++)
        node->cards[c] -= (codes)(node->cards[c] == code) & taken;
    node->cpu -= (cpu[1] & wide(second)) | (cpu[0] & wide(runs[0] & ~second));
}

static i32 has_room(const struct node *node, u16 share)
{
    codes any = {0};
    for (i32 c = 0; c < node->live; c++)
        any |= (codes)(node->cards[c] >= share);
    return __builtin_reduce_or(any) != 0;
}

/* Put in the cards that are not full, the emptiest first, each with its position in its code. */
static void put_cards(struct node *node, const i16 *levels, i32 width)
{
    i16 ordered[CARDS];
    node->live = 0;
    for (i32 c = 0; c < width; c++) {
        if (levels[c] <= 0)
            continue;
        i32 at = node->live++;
        for (; at > 0 && ordered[at - 1] < levels[c]; at--)
            ordered[at] = ordered[at - 1];
        ordered[at] = levels[c];
    }
    for (i32 c = 0; c < node->live; c++)
        node->cards[c] = (codes){0} + (u16)(ordered[c] << SLOT_BITS | c);
}

static float waste_milli(const struct model *model, const i16 *levels, i32 width, i32 cpu)
{
    struct node node;
    put_cards(&node, levels, width);
    node.cpu = (cores){0} + cpu;
    const struct several *pod = model->several, *end = pod + model->several_count;
    for (i64 step = 0; step < model->steps; step++) {
        /* Now and then: whether any pod that is left has room on any card. */
        if (step % 4 == 0 && !has_room(&node, model->least[step]))
            break;
        for (; pod < end && pod->step == step; pod++)
            take_whole(&node, pod);
        take_one(&node, model->cpu + 2 * step, model->share + 2 * step, model->on_cards + 2 * step);
    }
    i32 sum = 0;
    for (i32 c = 0; c < node.live; c++)
        for (i32 s = 0; s < SEQUENCES; s++)
            sum += node.cards[c][s] >> SLOT_BITS;
    return (float)sum / SEQUENCES; /* exact: the sum is below 2**24 */
}

/* Write the mean of what is left of the cards of each node to *found*; the arrays are [node], and
 * *levels* is [node, card]. */
__attribute__((visibility("default")))
void fracgpu_waste(const struct model *models, const i16 *levels, i64 width, const i32 *cpu,
                   const i64 *model, i64 nodes, float *found)
{
    for (i64 n = 0; n < nodes; n++)
        found[n] = waste_milli(&models[model[n]], levels + n * width, (i32)width, cpu[n]);
}
