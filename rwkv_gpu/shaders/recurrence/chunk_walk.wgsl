// S, a chunk at a time: U = W Sᵀ + U₀, y = R Sᵀ + Y₀, S = S diag(decay) + Uᵀ B      one workgroup per segment, head and SLICE rows of S
//
// If k and b differ, Vᵀ K is added, too. SPLIT lanes share ROWS rows of S, whose columns stay in registers. Workgroup memory
// holds the values that all rows of a chunk read: first R and W, then B and K. Meanwhile the next values are loaded.
// needs token sum: sum_of; recurrence/chunk: Block, token_place; lib/step: kept_state
// needs state: load_state, store_state
// needs recurrence/chunk_stack: decay_place, key_part, value_part
@group(0) @binding(1) var<storage, read> chunks: array<vec4f>;          // the stack that chunk_solve has written
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, N], Y₀, then y

const_assert WG == SLICE / ROWS * SPLIT;
const_assert N % SLICE == 0u;
const_assert N4 % SPLIT == 0u;
const SLICES = N / SLICE;
const ITEMS = BLOCK * N4;           // vec4s of one part of the stack for a chunk
const COLUMNS = N4 / SPLIT;         // vec4s of a row per lane: every SPLIT-th, so that neighbouring lanes load neighbouring memory
const FOURS = BLOCK / 4u;
const OWNED = 4u / min(SPLIT, 4u);  // how many of four tokens a lane completes; none from the fifth lane on
const OWN = FOURS * OWNED * ROWS;
const LOADS = (2u * ITEMS + WG - 1u) / WG;

var<workgroup> stage: array<vec4f, 2u * ITEMS>;     // first R and W, then B and K
var<workgroup> added: array<f32, 2u * BLOCK * SLICE>;   // U and V, by token

// The terms that a lane adds to its sums.
struct Own {
    u: array<f32, OWN>,
    v: array<f32, OWN>,
    y: array<f32, OWN>,
}

fn run(group: u32, lane: u32) {
    let number = group / (H * SLICES);
    if number >= step.segments {
        return;
    }
    let segment = segments[number];
    let head = group / SLICES % H;
    let own = lane / SPLIT * ROWS;
    let part = lane % SPLIT;
    let row = group % SLICES * SLICE + own;
    let source = ((segment.source * H + head) * N + row) * N4 + part;
    let written = ((segment.written * H + head) * N + row) * N4 + part;
    var s: array<vec4f, ROWS * COLUMNS>;
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        s[i] = vec4f();
        if segment.start > 0u {
            s[i] = load_state(source + i / COLUMNS * N4 + i % COLUMNS * SPLIT);
        }
    }
    var next: array<vec4f, LOADS>;
    var mine = Own();
    let alone = segment.kept > 0u;
    let most = select(BLOCK, 1u, alone);
    let first = Block(segment.first, min(most, segment.count), head, alone);
    load(&next, first, PART_R, PART_W, lane);
    load_own(&mine, first, row, part);
    for (var done = 0u; done < segment.count; done += most) {
        let block = Block(segment.first + done, min(most, segment.count - done), head, alone);
        let decays = decay_place(number, done, head) + part;
        put(&next, lane);
        workgroupBarrier();
        load(&next, block, PART_B, PART_K, lane);
        var decay: array<vec4f, COLUMNS>;
        for (var c = 0u; c < COLUMNS; c++) {
            decay[c] = chunks[decays + c * SPLIT];
        }
        for (var four = 0u; four < FOURS; four++) {
            see(&s, &mine, block, four, row, own, part);
        }
        workgroupBarrier();
        put(&next, lane);
        let after = min(done + most, segment.count);    // after the last block, a block without tokens
        let following = Block(segment.first + after, min(most, segment.count - after), head, alone);
        load(&next, following, PART_R, PART_W, lane);
        load_own(&mine, following, row, part);
        workgroupBarrier();
        add(&s, &decay, own, part);
        workgroupBarrier();
        if done < segment.kept {
            save(&s, ((kept_state(segment, done) * H + head) * N + row) * N4 + part);
        }
    }
    save(&s, written);
}

fn save(s: ptr<function, array<vec4f, ROWS * COLUMNS>>, place: u32) {
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        store_state(place + i / COLUMNS * N4 + i % COLUMNS * SPLIT, (*s)[i]);
    }
}

// Two parts of a chunk; zeros for missing tokens.
fn load(next: ptr<function, array<vec4f, LOADS>>, block: Block, first: u32, second: u32, lane: u32) {
    for (var n = 0u; n < LOADS; n++) {
        let e = n * WG + lane;
        (*next)[n] = vec4f();
        if e % ITEMS / N4 < block.tokens && e < 2u * ITEMS && wanted(select(first, second, e >= ITEMS)) {
            let place = token_place(block, e % ITEMS / N4, e % N4);
            (*next)[n] = chunks[key_part(select(first, second, e >= ITEMS)) + place];
        }
    }
}

fn wanted(part: u32) -> bool {
    return (part != PART_K || ONE_KEY == 0u) && (part != PART_W || REMOVES != 0u);
}

fn put(next: ptr<function, array<vec4f, LOADS>>, lane: u32) {
    for (var n = 0u; n < LOADS; n++) {
        if 2u * ITEMS % WG == 0u || n * WG + lane < 2u * ITEMS {
            stage[n * WG + lane] = (*next)[n];
        }
    }
}

// U, V and y of a lane's tokens without the S before the chunk. Other lanes write y of their own tokens.
fn load_own(mine: ptr<function, Own>, block: Block, row: u32, part: u32) {
    for (var i = 0u; i < OWN; i++) {
        let token = token_of(part, i / ROWS);
        if part < 4u && token < block.tokens {
            let at = 4u * token_place(block, token, 0u) + row + i % ROWS;
            (*mine).u[i] = channel_of(PART_U, at);
            (*mine).y[i] = y[at];
            if ONE_KEY == 0u {
                (*mine).v[i] = channel_of(PART_V, at);
            }
        }
    }
}

fn channel_of(part: u32, at: u32) -> f32 { return chunks[value_part(part) + at / 4u][at % 4u]; }

// The n-th token of a lane.
fn token_of(part: u32, n: u32) -> u32 { return n / OWNED * 4u + part % 4u + n % OWNED; }

// The contribution of the S before the chunk to U and y of four tokens.
fn see(
    s: ptr<function, array<vec4f, ROWS * COLUMNS>>, mine: ptr<function, Own>,
    block: Block, four: u32, row: u32, own: u32, part: u32,
) {
    var u: array<vec4f, ROWS>;
    var out: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        u[j] = vec4f();
        out[j] = vec4f();
    }
    for (var c = 0u; c < COLUMNS; c++) {
        let at = 4u * four * N4 + c * SPLIT + part;
        let r = mat4x4f(stage[at], stage[at + N4], stage[at + 2u * N4], stage[at + 3u * N4]);
        for (var j = 0u; j < ROWS; j++) {
            out[j] += (*s)[j * COLUMNS + c] * r;
        }
        if REMOVES != 0u {
            let w = mat4x4f(
                stage[ITEMS + at], stage[ITEMS + at + N4], stage[ITEMS + at + 2u * N4], stage[ITEMS + at + 3u * N4],
            );
            for (var j = 0u; j < ROWS; j++) {
                u[j] += (*s)[j * COLUMNS + c] * w;
            }
        }
    }
    for (var j = 0u; j < ROWS; j++) {
        for (var n = 0u; n < OWNED; n++) {
            let seen = vec2f(sum_of(u[j], part, n), sum_of(out[j], part, n));
            let i = (four * OWNED + n) * ROWS + j;
            let token = token_of(part, four * OWNED + n);
            let here = token * SLICE + own + j;
            let is_there = token < block.tokens;
            if part < 4u {
                added[here] = select(0.0, seen.x + (*mine).u[i], is_there);
                if ONE_KEY == 0u {
                    added[BLOCK * SLICE + here] = select(0.0, (*mine).v[i], is_there);
                }
            }
            if part < 4u && is_there {
                y[4u * token_place(block, token, 0u) + row + j] = seen.y + (*mine).y[i];
            }
        }
    }
}

// The S after the chunk.
fn add(
    s: ptr<function, array<vec4f, ROWS * COLUMNS>>, decay: ptr<function, array<vec4f, COLUMNS>>, own: u32, part: u32,
) {
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        (*s)[i] *= (*decay)[i % COLUMNS];
    }
    for (var t = 0u; t < BLOCK; t++) {
        for (var c = 0u; c < COLUMNS; c++) {
            let b = stage[t * N4 + c * SPLIT + part];
            for (var j = 0u; j < ROWS; j++) {
                (*s)[j * COLUMNS + c] += added[t * SLICE + own + j] * b;
            }
            if ONE_KEY == 0u {
                let k = stage[ITEMS + t * N4 + c * SPLIT + part];
                for (var j = 0u; j < ROWS; j++) {
                    (*s)[j * COLUMNS + c] += added[BLOCK * SLICE + t * SLICE + own + j] * k;
                }
            }
        }
    }
}
