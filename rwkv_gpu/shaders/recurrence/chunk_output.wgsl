// Norms, gates and writes y = S r of a chunk of rows      one workgroup per BLOCK rows and head
// needs recurrence/chunk: Block, token_place; extra: prepare_output; output: conclude, last_of
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4]

const ITEMS = BLOCK * N4;           // vec4s of a chunk

var<workgroup> block_y: array<vec4f, ITEMS>;

fn run(group: u32, lane: u32) {
    let row = group / H * BLOCK;
    if row >= step.rows {
        return;
    }
    let block = Block(row, min(BLOCK, step.rows - row), group % H, false);
    let last = last_of(block, lane);
    for (var i = lane; i < block.tokens * N4; i += WG) {
        block_y[i] = y[item_place(block, i)];
    }
    prepare_output(block, lane);
    conclude(last, block, lane);
}

fn y4(i: u32) -> vec4f { return block_y[i]; }

// The place of a vec4 of a chunk in [T, H, N / 4].
fn item_place(block: Block, i: u32) -> u32 { return token_place(block, i / N4, i % N4); }

//# bonus: RWKV-7: the present token is weighted by r · k r_k.
// needs kernel: item_place; recurrence/sums: token_sum; rwkv/mixed: key_of, own_value, part_of
const GAIN = 3u;                    // the first norm vector in `vectors`: k_k, k_a, r_k, norm weight and bias [5, H, N / 4]

var<workgroup> block_v: array<vec4f, ITEMS>;
var<workgroup> token_bonus: array<f32, BLOCK>;

fn prepare_output(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let place = item_place(block, i);
        let d = block.head * N4 + i % N4;
        block_v[i] = own_value(place);
        sums[i] = dot(part_of(R, place) * key_of(place, d), vectors[2u * D4 + d]);
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_bonus[lane] = token_sum(lane);
    }
    workgroupBarrier();
}

fn with_bonus(token: u32, i: u32, normed: vec4f) -> vec4f {
    return fma(vec4f(token_bonus[token]), block_v[i], normed);
}

//# first: RWKV-6: r reads S before its token; the token itself is weighted by the bonus of its channels, if there is one.
// needs bonus: first_of; kernel: item_place; lib/step: apart; recurrence/sums: token_sum
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // a stack of r [T, H, N / 4], k and v [T, KEY_HEADS, N / 4], and the gate [T, H, N / 4]

const K4 = KEY_HEADS * N4;

var<workgroup> token_bonus: array<f32, BLOCK>;

fn prepare_output(block: Block, lane: u32) {
    if READS_OLD != 0u {
        for (var i = lane; i < block.tokens * N4; i += WG) {
            let d = block.head * N4 + i % N4;
            sums[i] = dot(rkvg[item_place(block, i)] * rkvg[apart(D4) + key_at(block, i)], first_of(d));
        }
        workgroupBarrier();
        if lane < block.tokens {
            token_bonus[lane] = token_sum(lane);
        }
        workgroupBarrier();
        for (var i = lane; i < block.tokens * N4; i += WG) {
            block_y[i] += token_bonus[i / N4] * rkvg[apart(D4) + apart(K4) + key_at(block, i)];
        }
    }
    workgroupBarrier();
}

fn key_at(block: Block, i: u32) -> u32 {
    return (block.row + i / N4) * K4 + block.head / (H / KEY_HEADS) * N4 + i % N4;
}

fn with_bonus(_token: u32, _i: u32, normed: vec4f) -> vec4f { return normed; }
fn gate_of(place: u32) -> vec4f { return rkvg[apart(D4) + 2u * apart(K4) + place]; }

//# gain: The only parameter that the output reads is the weight of the norm.
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // [N / 4]

const GAIN_AT = 0u;

fn prepare_output(_block: Block, _lane: u32) { workgroupBarrier(); }
fn parameter_at(i: u32) -> f32 { return vectors[i / 4u][i % 4u]; }
