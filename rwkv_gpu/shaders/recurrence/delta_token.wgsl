// S = decay(S) + d kᵀ, d = (v - S k) β, y = rms_norm(S q) · weight · then(gate)      one workgroup per head of a sequence's only row
//
// A workgroup waits for memory once. Each N / 4 neighbouring lanes load one of q, k, v and the gate, and the next lanes load decays
// and β. All lanes load S, which comes last because it is the largest. Norms over a head are sums over such neighbours, within one subgroup. S stays
// in registers, as tiles of ROWS rows and 4 columns; SPLIT lanes share ROWS rows.
// needs decay: prepare_decay; lib/sum/subgroup: group_sum; qkv: qkv_at
// needs recurrence/delta_tensors: key_head_of, key_is_first, rate_at; recurrence/gain: gain_at
// needs recurrence/step/delta_rule: advance; tile: load_tile, store_tile, store_y; y: write_y
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4]

const N4 = N / 4u;
const D4 = H * N4;
const ITEMS = N4;
const COLUMNS = N4 / SPLIT;         // tiles per lane: every SPLIT-th, so that neighbouring lanes load neighbouring memory
const GATE = 3u;                    // the index of the gate, after q, k and v
const LOADED = 4u * N4;             // vec4s of q, k, v and the gate
const TURNS = (LOADED + WG - 1u) / WG;

const_assert WG == N / ROWS * SPLIT;
const_assert COLUMNS % 4u == 0u;
const_assert WG % N4 == 0u && (N4 & (N4 - 1u)) == 0u;

var<workgroup> block_r: array<vec4f, N4>;       // q, scaled to length one and divided by sqrt(N)
var<workgroup> block_k: array<vec4f, N4>;       // k, scaled to length one
var<workgroup> block_v: array<vec4f, N4>;
var<workgroup> block_gain: array<vec4f, N4>;
var<workgroup> block_y: array<f32, N>;
var<workgroup> rate: f32;                       // β

// One head of one row of the step.
struct Block {
    row: u32,       // the row of the step
    tokens: u32,
    head: u32,
}

fn run(group: u32, lane: u32) {
    let row = group / H;                        // the row's sequence has the same number
    if row >= step.segments {
        return;
    }
    let segment = segments[row];
    let block = Block(row, 1u, group % H);
    let first = lane / SPLIT * ROWS;            // the first row of S of the lane
    let part = lane % SPLIT;
    let source = ((segment.source * H + block.head) * N + first) * N4 + part;
    let written = ((segment.written * H + block.head) * N + first) * N4 + part;
    for (var turn = 0u; turn < TURNS; turn++) {
        load_vectors(block, turn * WG + lane);
    }
    let behind = (lane + WG - LOADED % WG) % WG;
    prepare_decay(block, behind);
    if behind == N4 % WG {
        rate = rate_at(row, block.head);
    }
    var s: array<Tile, COLUMNS>;                // initially zeros
    if segment.start > 0u {
        for (var c = 0u; c < COLUMNS; c++) {
            s[c] = load_tile(source + c * SPLIT);
        }
    }
    workgroupBarrier();
    let out = advance(&s, 0u, part, first);
    if part == 0u {
        store_y(first, out);
    }
    for (var c = 0u; c < COLUMNS; c++) {
        store_tile(written + c * SPLIT, s[c]);
    }
    workgroupBarrier();
    let i = lane % N4;
    let found = vec4f(block_y[4u * i], block_y[4u * i + 1u], block_y[4u * i + 2u], block_y[4u * i + 3u]);
    let deviation = inverseSqrt(group_sum(dot(found, found), N4) / f32(N) + EPS);
    if lane < N4 {
        write_y(block, i, found * deviation * block_gain[i]);
    }
}

// Copies a vec4 of q, k, v or the gate to workgroup memory; i is its index among the vec4s of all four.
fn load_vectors(block: Block, i: u32) {
    let which = i / N4;
    let n = i % N4;
    var found = vec4f();
    if which < GATE {
        let of_value = which == 2u;
        let head = select(key_head_of(block.head), block.head, of_value);
        found = qkv_at(block.row, which, head * N4 + n, of_value || key_is_first(block.head));
    } else if which == GATE {
        found = gain_at(block, n);
    }
    let shorter = inverseSqrt(group_sum(dot(found, found), N4) + EPS);
    switch which {
        case 0u: { block_r[n] = found * shorter * inverseSqrt(f32(N)); }
        case 1u: { block_k[n] = found * shorter; }
        case 2u: { block_v[n] = found; }
        case 3u: { block_gain[n] = found; }
        default: {}
    }
}

fn rate_of(_token: u32) -> f32 { return rate; }

// The place of a vec4 of the head in [T, H, N / 4].
fn item_place(block: Block, i: u32) -> u32 { return block.row * D4 + block.head * N4 + i; }
