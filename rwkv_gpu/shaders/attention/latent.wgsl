// Parts of latent attention: reading and writing latents, and the queries of a workgroup.

//# no_rope: Heads of a model without rotary positions, unchanged.
fn partner(d: u32) -> u32 { return d; }

fn rotated(_position: u32, _d: u32, x: f32, _other: f32) -> f32 { return x; }

//# chosen_keys: The keys that were chosen for a row; `row` counts all lists.
// needs pages of rows: segment_of
@group(0) @binding(4) var<storage, read> chosen: array<u32>;            // [T, COUNT] of positions

fn first_key(t: u32, base: u32) -> u32 { return t * COUNT + base; }

// The row of a key in the cache; beyond the end of the list, the row of some key.
fn key_row(row: u32, key: u32) -> u32 {
    let i = min(row + key, arrayLength(&chosen) - 1u);
    let last = select(chosen[i], 0u, chosen[i] == NO_KEY) * ENTRY + ENTRY - 1u;
    return pages[segment_of(i / COUNT) * MAX_PAGES + last / PAGE] * (PAGE / PER_ROW) + last % PAGE / ENTRY;
}

//# chosen_rows: Queries of rows with keys of their own: a block is Q heads of a row, whose keys count as its positions.
// needs attention/block: Block
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)

const SPLITS = (H + Q - 1u) / Q;

struct Part {
    block: Block,
    run: u32,
}

var<private> own_row: u32;

// The keys of a row: of its positions or entries, whole blocks up to a number, and the incomplete block at the end.
fn count_of(all: u32) -> u32 { return min(all / BLOCK * BLOCK, COUNT + 1u - BLOCK) + all % BLOCK; }

fn part_of(group: u32, _lane: u32) -> Part {
    let t = group / SPLITS;
    own_row = min(t, step.rows - 1u);
    let head = group % SPLITS * Q;
    var found = Block();
    if t < step.rows && places[t].x + 1u >= ENTRY {
        found = Block(t * H + head, min(Q, H - head), count_of((places[t].x + 1u) / ENTRY) - 1u, t);
    }
    return Part(found, RUN);
}

//# entries_of_row: All entries of the sequence of `own_row`, which attention/latent/chosen_rows sets.
// needs pages of rows: segment_of
fn first_key(_t: u32, base: u32) -> u32 { return base; }

// The row of an entry in the cache; beyond the last of its page table, the row of some entry.
fn key_row(row: u32, key: u32) -> u32 {
    let last = (row + key) * ENTRY + ENTRY - 1u;
    return pages[segment_of(own_row) * MAX_PAGES + min(last / PAGE, MAX_PAGES - 1u)] * (PAGE / PER_ROW) + last % PAGE / ENTRY;
}

//# every_key: All keys of a sequence, in order; `row` counts all pages.
fn first_key(segment: u32, base: u32) -> u32 { return pages[segment * MAX_PAGES + base / PAGE] * PAGE + base % PAGE; }

fn key_row(row: u32, key: u32) -> u32 { return row + key; }

//# pages_of_rows: Each row is a separate sequence.
fn segment_of(t: u32) -> u32 { return t; }

//# pages_of_segments: Rows belong to segments.
@group(0) @binding(6) var<storage, read> row_segment: array<u32>;       // [T]

fn segment_of(t: u32) -> u32 { return row_segment[t]; }

//# read_f16: Latents as halves, two to a word: 8 dims are one load.
// needs attention/eight: Eight
fn latent8(i: u32) -> Eight {
    let words = keys[i];
    return Eight(halves(words.xy), halves(words.zw));
}

fn latent4(i: u32) -> vec4f {
    let words = keys[i / 2u];
    return halves(select(words.xy, words.zw, i % 2u == 1u));
}

fn halves(words: vec2u) -> vec4f { return vec4f(unpack2x16float(words.x), unpack2x16float(words.y)); }

//# read_f32: Latents as float32.
// needs attention/eight: Eight
fn latent8(i: u32) -> Eight { return Eight(bitcast<vec4f>(keys[2u * i]), bitcast<vec4f>(keys[2u * i + 1u])); }

fn latent4(i: u32) -> vec4f { return bitcast<vec4f>(keys[i]); }

//# rotate: Rotates dims of a head by the position.
// needs rope: is_second, pair_of, partner_of
@group(0) @binding(3) var<storage, read> turns: array<vec2f>;           // (cos, sin) [PAGE + pages, DIMS / 2]

fn partner(d: u32) -> u32 { return partner_of(d); }

fn rotated(position: u32, d: u32, x: f32, other: f32) -> f32 {
    let turn = turn_of(position, pair_of(d));
    return x * turn.x + select(-other, other, is_second(d)) * turn.y;
}

// The rotation of a position is that of the page's first position, rotated by the place in the page. Both are exact.
fn turn_of(position: u32, pair: u32) -> vec2f {
    let a = turns[position % PAGE * (DIMS / 2u) + pair];
    let b = turns[(PAGE + position / PAGE) * (DIMS / 2u) + pair];
    return vec2f(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

//# segments
// Queries of rows in segments: a block is Q heads of neighbouring rows of one sequence, and attends to its context only.
// needs attention/blocks_of_segments: nth_block
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]

struct Part {
    block: Block,
    run: u32,
}

fn part_of(group: u32, _lane: u32) -> Part { return Part(nth_block(group, H, Q), 0u); }

//# single_rows: Queries in steps with one row per sequence: a block is Q heads of one sequence and one run of its context.
// needs attention/block: Block; runs of rows: run_at
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)

const SPLITS = (H + Q - 1u) / Q;

struct Part {
    block: Block,
    run: u32,
}

fn part_of(group: u32, lane: u32) -> Part {
    let place = run_at(group / SPLITS, lane);
    let t = place.x;
    let head = group % SPLITS * Q;
    var found = Block();
    if t < step.rows {
        found = Block(t * H + head, min(Q, H - head), places[t].x, t);
    }
    return Part(found, place.y);
}

//# whole_cut: A workgroup processes all keys of its rows, which are one run of several.
// needs reach: first_seen
struct Cut {
    start: u32,
    end: u32,
}

fn cut_of(first: u32, last: u32, _number: u32) -> Cut { return Cut(first_seen(first), last + 1u); }

//# window_and_entries: Rows have a run of their window, and one of their entries if any is complete.
fn runs_of(position: u32) -> u32 { return select(RUNS, 1u, position + 1u < ENTRY); }

//# write_f16: Writes 8 dims of a latent to its page as halves, two to a word.
fn put8(i: u32, x: Eight) {
    keys[i] = vec4u(
        pack2x16float(x.low.xy), pack2x16float(x.low.zw),
        pack2x16float(x.high.xy), pack2x16float(x.high.zw),
    );
}

//# write_f32: Writes 8 dims of a latent to its page as float32.
fn put8(i: u32, x: Eight) {
    keys[2u * i] = bitcast<vec4u>(x.low);
    keys[2u * i + 1u] = bitcast<vec4u>(x.high);
}
