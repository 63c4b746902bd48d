/* What a pod would cost on each node; library.py calls it and policy.py tells what it means.
 *
 * It needs no header and no library, Python's included. The caller vouches for all sizes: rows are
 * below the table's, models of nodes that are not known to the policy are skipped.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef int i32;
typedef long long i64;

/* As draws.py and library.py have them. */
enum {
    SEQUENCES = 32,
    CARDS = 32,
    SLOT_BITS = 5,
    WHOLE = 1000,
    NO_ROOM = 1 << 15,
    CPU_STEP = 1000,
    MOST_CORES = 256, /* more free CPU is of no use to the cards of one node */
    WAYS = 8,
};

/* One number for each sequence: sequences advance together, without branches. A card is a code, its
 * free thousandths << SLOT_BITS | its position, so that the codes of a node are distinct. */
typedef u16 codes __attribute__((vector_size(2 * SEQUENCES)));
typedef i16 masks __attribute__((vector_size(2 * SEQUENCES)));
typedef i32 cores __attribute__((vector_size(4 * SEQUENCES), aligned(2 * SEQUENCES)));

/* A card model, and the pods that fill copies of its nodes. */
struct model {
    const cores *cpu;         /* [step, pod of the pair] */
    const codes *share;       /* likewise, as codes; 0: only CPU; NO_ROOM: on several cards */
    const cores *several;     /* [step] how many cards the pod of the pair takes that has several */
    const cores *several_cpu; /* [step] */
};

/* A class of pods with cards. */
struct class {
    double frequency;
    i64 share, cards, cpu;
};

struct policy {
    const struct model *models;
    const struct class *classes;
    const u8 *accepts;       /* [model, class] */
    const i64 *cpu_steps;    /* ascending */
    const double *worth;     /* [model, steps of CPU reached, idle cards] */
    const double *prices;    /* [model] of a thousandth of a card */
    u64 *names;              /* [set, way] the memory of what was evaluated; 0 is no name */
    float *values;
    i64 model_count, steps, class_count, cpu_step_count, set_bits;
    i64 evaluated;
    double fill, fragment, idle;
};

struct nodes {
    const i64 *changed;
    const i64 *cpu;
    const i64 *model;
    const i32 *size_mib; /* [row, card] */
    const i16 *levels;   /* [row, card] free thousandths; 0 for a card that takes nothing */
};

struct request {
    i64 mib, cards, cpu;
    const i64 *rows; /* [entry] */
    i64 count;
    i64 priced;         /* the number of the prices */
    i64 allowance;      /* how much may be evaluated */
    const u32 *closed;  /* [entry] bits of cards that the pod does not get; may be missing */
    double *cost;       /* [row], or [entry] with closed cards; and so on */
    u32 *taken;         /* bits of the cards that it would take */
    i64 *changed_at;    /* the change of the node that the cost is of */
    i64 *priced_at;     /* the prices that the cost is of */
};

/* A node, filled by each sequence. */
struct filling {
    codes cards[CARDS];
    cores cpu;
    i32 live;
};

/* The cards of a node, and what is asked of them. */
struct state {
    i16 levels[CARDS];
    i64 cpu;
    u64 name;
    i64 model, idle_cards, idle;
};

static inline codes chosen(codes mask, codes yes, codes no)
{
    return (yes & mask) | (no & ~mask);
}

static inline cores wide(codes mask)
{
    return __builtin_convertvector((masks)mask, cores);
}

/* Place a pod on the first whole cards of one sequence, if there are enough. */
static void take_whole(struct filling *node, i32 at, i32 cards, i32 cpu)
{
    const u16 whole = WHOLE << SLOT_BITS;
    i32 there = 0;
    for (i32 c = 0; c < node->live; c++)
        there += node->cards[c][at] >= whole;
    if (there < cards || node->cpu[at] < cpu)
        return;
    for (i32 c = 0; cards > 0; c++)
        if (node->cards[c][at] >= whole) {
            node->cards[c][at] -= whole;
            cards--;
        }
    node->cpu[at] -= cpu;
}

/* Of a pair of pods, place the one that leaves less of its card, on the tightest card with room. */
static inline void take_one(struct filling *node, const cores *cpu, const codes *share)
{
    const codes none = {0};
    codes tight[2] = {~none, ~none}, runs[2], left[2];
    /* What each card would have left. Without room the difference wraps round to NO_ROOM or more. */
    for (i32 c = 0; c < node->live; c++) {
        tight[0] = __builtin_elementwise_min(tight[0], node->cards[c] - share[0]);
        tight[1] = __builtin_elementwise_min(tight[1], node->cards[c] - share[1]);
    }
    for (i32 pod = 0; pod < 2; pod++) {
        runs[pod] = (codes)(tight[pod] < NO_ROOM);
        runs[pod] &= __builtin_convertvector(node->cpu >= cpu[pod], codes);
        codes on_card = (codes)(share[pod] != 0); /* else it takes only CPU, and leaves nothing */
        left[pod] = chosen(runs[pod], (tight[pod] >> SLOT_BITS) & on_card, none + NO_ROOM);
    }
    /* Of a tie the first pod runs. Whoever does not run takes nothing. */
    codes second = (codes)(left[1] < left[0]);
    codes taken = chosen(second, share[1], share[0] & runs[0]);
    codes code = chosen(second, tight[1] + share[1], tight[0] + share[0]);
    for (i32 c = 0; c < node->live; c++)
        node->cards[c] -= (codes)(node->cards[c] == code) & taken;
    node->cpu -= (cpu[1] & wide(second)) | (cpu[0] & wide(runs[0] & ~second));
}

/* What stays idle of a node's cards, the mean of all sequences. *levels* descend. */
static double filled(const struct model *model, i64 steps, const i16 *levels, i32 live, i64 cpu)
{
    struct filling node;
    node.live = live;
    for (i32 c = 0; c < live; c++)
        node.cards[c] = (codes){0} + (u16)(levels[c] << SLOT_BITS | c);
    node.cpu = (cores){0} + (i32)cpu;
    for (i64 step = 0; step < steps; step++) {
        if (__builtin_reduce_or(model->several[step]))
            for (i32 s = 0; s < SEQUENCES; s++)
                if (model->several[step][s])
                    take_whole(&node, s, model->several[step][s], model->several_cpu[step][s]);
        take_one(&node, model->cpu + 2 * step, model->share + 2 * step);
    }
    i32 sum = 0;
    for (i32 c = 0; c < live; c++)
        for (i32 s = 0; s < SEQUENCES; s++)
            sum += node.cards[c][s] >> SLOT_BITS;
    return (double)sum / SEQUENCES;
}

/* What is idle and of no use to the next pod, a random one of the mix. */
static double unusable(const struct policy *policy, i64 model, const i16 *levels, i32 live, i64 cpu)
{
    const u8 *accepts = policy->accepts + model * policy->class_count;
    double found = 0;
    i64 idle = 0;
    for (i32 c = 0; c < live; c++)
        idle += levels[c];
    for (i64 at = 0; at < policy->class_count; at++) {
        const struct class *class = &policy->classes[at];
        i64 enough = 0, room = 0;
        if (accepts[at] && class->cpu <= cpu)
            for (; enough < live && levels[enough] >= class->share; enough++)
                room += levels[enough];
        found += class->frequency * (double)(idle - (enough < class->cards ? 0 : room));
    }
    return found;
}

static float evaluated(const struct policy *policy, const struct state *state, i64 cpu)
{
    const struct model *model = &policy->models[state->model];
    i16 levels[CARDS];
    i32 live = 0;
    for (i32 c = 0; c < CARDS; c++) {
        i16 level = state->levels[c];
        if (level <= 0)
            continue;
        i32 at = live++;
        for (; at > 0 && levels[at - 1] < level; at--)
            levels[at] = levels[at - 1];
        levels[at] = level;
    }
    double fill = filled(model, policy->steps, levels, live, cpu);
    double fragment = unusable(policy, state->model, levels, live, cpu);
    return (float)(policy->fill * fill + policy->fragment * fragment);
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
static inline u64 mixed(u64 x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* The name of a state is the sum of those of its cards: their order does not count. */
static inline u64 card_name(i64 level)
{
    return mixed((u64)level * 0x9E3779B97F4A7C15ull); /* 0 for a card that takes nothing */
}

/* The value of a state with whole cores of CPU, remembered; NaN if it may not be evaluated. */
static double value(struct policy *policy, const struct state *state, i64 step, i64 *allowance)
{
    u64 name = mixed(state->name + (u64)(state->model * (MOST_CORES + 2) + step + 1) *
                                       0xD1B54A32D192ED03ull) | 1;
    i64 set = (i64)(name >> (64 - policy->set_bits)) * WAYS;
    for (i64 way = set; way < set + WAYS; way++)
        if (policy->names[way] == name)
            return policy->values[way];
    if (*allowance <= 0)
        return __builtin_nan("");
    --*allowance;
    i64 way = set + policy->evaluated++ % WAYS;
    policy->names[way] = name;
    policy->values[way] = evaluated(policy, state, step * CPU_STEP);
    return policy->values[way];
}

/* What a state costs: what is wasted, less what its idle cards are worth. */
static double cost_of(struct policy *policy, const struct state *state, i64 *allowance)
{
    i64 cpu = state->cpu < 0 ? 0 : state->cpu, step = cpu / CPU_STEP, part = cpu % CPU_STEP;
    if (step >= MOST_CORES)
        step = MOST_CORES, part = 0;
    double found = value(policy, state, step, allowance);
    if (part) {
        double more = value(policy, state, step + 1, allowance);
        found += (more - found) * (double)part / CPU_STEP;
    }
    i64 reached = 0; /* how many steps of CPU */
    while (reached < policy->cpu_step_count && policy->cpu_steps[reached] <= state->cpu)
        reached++;
    i64 cell = (state->model * (policy->cpu_step_count + 1) + reached) * (CARDS + 1);
    return found - policy->worth[cell + state->idle_cards];
}

static void set_level(struct state *state, i32 card, i64 level)
{
    i64 before = state->levels[card];
    state->levels[card] = (i16)level;
    state->idle_cards += (level == WHOLE) - (before == WHOLE);
    state->idle += level - before;
    state->name += card_name(level) - card_name(before);
}

static i64 share_of(const struct request *request, i64 size_mib)
{
    i64 share = request->mib * WHOLE / (size_mib > 0 ? size_mib : 1);
    return share < 1 ? 1 : share > WHOLE ? WHOLE : share;
}

/* Write the least cost of a pod on one node, and the cards for it: infinite if it does not fit, NaN
 * if that is not known. A pod of one card has an option for each distinct card with room, any other
 * the tightest ones. Cards come in ascending order, so of equal options the tightest counts. */
static void rank(struct policy *policy, const struct nodes *nodes, struct request *request, i64 row,
                 u32 closed, double *cost, u32 *taken)
{
    const i16 *levels = nodes->levels + row * CARDS;
    const i32 *sizes = nodes->size_mib + row * CARDS;
    struct state now = {.cpu = nodes->cpu[row], .model = nodes->model[row]};
    i32 order[CARDS], fitting = 0;
    for (i32 c = 0; c < CARDS; c++) {
        if (levels[c] > 0)
            set_level(&now, c, levels[c]);
        if (levels[c] <= 0 || closed >> c & 1 || levels[c] < share_of(request, sizes[c]))
            continue;
        i32 at = fitting++;
        for (; at > 0 && levels[order[at - 1]] > levels[c]; at--)
            order[at] = order[at - 1];
        order[at] = c;
    }
    *cost = __builtin_inf();
    *taken = 0;
    if (fitting < request->cards || now.cpu < request->cpu)
        return;
    i64 *allowance = &request->allowance;
    double before = cost_of(policy, &now, allowance), price = policy->prices[now.model];
    i32 options = request->cards == 1 ? fitting : 1, unknown = before != before;
    for (i32 option = 0; option < options && !unknown; option++) {
        i32 last = order[option];
        if (option > 0 && levels[last] == levels[order[option - 1]] &&
            sizes[last] == sizes[order[option - 1]])
            continue;
        struct state after = now;
        u32 cards = 0;
        after.cpu -= request->cpu;
        for (i32 at = option; at < option + request->cards; at++) {
            i32 card = order[at];
            set_level(&after, card, levels[card] - share_of(request, sizes[card]));
            cards |= 1u << card;
        }
        double found = cost_of(policy, &after, allowance) - before;
        found += policy->idle * (double)now.idle + price * (double)(now.idle - after.idle);
        unknown = found != found;
        if (unknown)
            break;
        /* Thousandths, so that equal costs are equal whatever they were summed up from. */
        found = (double)(i64)(found * 1000 + (found < 0 ? -0.5 : 0.5)) / 1000;
        if (found < *cost)
            *cost = found, *taken = cards;
    }
    if (unknown)
        *cost = __builtin_nan("");
}

/* Bring the costs of a request up to date on its rows; return how many are not known or are of
 * earlier prices, because nothing more may be evaluated. Where something may be, the rows that come
 * after the last evaluation are not looked at. */
__attribute__((visibility("default")))
i64 fracgpu_rank(struct policy *policy, const struct nodes *nodes, struct request *request)
{
    i64 left = 0, evaluates = request->allowance > 0;
    for (i64 entry = 0; entry < request->count; entry++) {
        if (evaluates && request->allowance <= 0)
            return left + request->count - entry;
        i64 row = request->rows[entry], at = request->closed ? entry : row;
        i64 known = !request->closed && request->changed_at[at] == nodes->changed[row];
        if (known && request->priced_at[at] == request->priced)
            continue;
        double cost = __builtin_nan("");
        u32 taken = 0;
        i32 has_model = nodes->model[row] >= 0 && nodes->model[row] < policy->model_count;
        if (has_model)
            rank(policy, nodes, request, row, request->closed ? request->closed[entry] : 0, &cost,
                 &taken);
        i32 unknown = has_model && cost != cost;
        left += unknown;
        if (unknown && known)
            continue; /* prices move slowly: an earlier one is better than none */
        request->cost[at] = cost;
        request->taken[at] = taken;
        if (!request->closed) {
            request->changed_at[at] = unknown ? -1 : nodes->changed[row];
            request->priced_at[at] = unknown ? -1 : request->priced;
        }
    }
    return left;
}

/* A checksum of the structs as library.py has them, which setup.py computes. */
__attribute__((visibility("default"))) u32 fracgpu_layout(void)
{
    return FRACGPU_LAYOUT;
}
