// Walks the tokens of a segment with S in registers, as tiles of ROWS rows and 4 columns      SPLIT lanes per ROWS rows of S
//
// All lanes together prepare BLOCK tokens in workgroup memory. Then each lane processes them without a barrier, and all lanes
// together write the results. Software Vulkan stops an invocation after 65,535 iterations of all its loops, so the inner ones
// are unrolled by 4.
// needs kernel: advance, prepare; lib/step: kept_state; output: conclude, last_of; tile: load_tile, store_tile, store_y
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4]

const_assert WG == N / ROWS * SPLIT;
const_assert COLUMNS % 4u == 0u;
const_assert BLOCK <= WG;
const N4 = N / 4u;
const D4 = H * N4;
const COLUMNS = N4 / SPLIT;         // tiles per lane: every SPLIT-th, so that neighbouring lanes load neighbouring memory
const ITEMS = BLOCK * N4;           // vec4s of one vector for all tokens of a block

var<workgroup> block_r: array<vec4f, ITEMS>;
var<workgroup> block_k: array<vec4f, ITEMS>;
var<workgroup> block_v: array<vec4f, ITEMS>;
var<workgroup> block_y: array<f32, 4u * ITEMS>;

// Tokens that are processed together.
struct Block {
    row: u32,       // the first token's row of the step
    tokens: u32,
    head: u32,
}

fn run(group: u32, lane: u32) {
    if group / H >= step.segments {
        return;
    }
    let segment = segments[group / H];
    let head = group % H;
    let row = lane / SPLIT * ROWS;
    let part = lane % SPLIT;
    let source = ((segment.source * H + head) * N + row) * N4 + part;
    let written = ((segment.written * H + head) * N + row) * N4 + part;
    var s: array<Tile, COLUMNS>;        // initially zeros
    if segment.start > 0u {
        for (var c = 0u; c < COLUMNS; c++) {
            s[c] = load_tile(source + c * SPLIT);
        }
    }
    for (var done = 0u; done < segment.count; done += BLOCK) {
        let block = Block(segment.first + done, min(BLOCK, segment.count - done), head);
        let last = last_of(block, lane);     // loaded while the tokens are processed
        workgroupBarrier();                  // all lanes have read the previous block
        prepare(block, lane);
        for (var token = 0u; token < block.tokens; token++) {
            let out = advance(&s, token, token * N4 + part, row);
            if part == 0u {
                store_y(token * N + row, out);
            }
            if done + token < segment.kept {
                let kept = ((kept_state(segment, done + token) * H + head) * N + row) * N4 + part;
                for (var c = 0u; c < COLUMNS; c++) {
                    store_tile(kept + c * SPLIT, s[c]);
                }
            }
        }
        workgroupBarrier();
        conclude(last, block, lane);
    }
    for (var c = 0u; c < COLUMNS; c++) {
        store_tile(written + c * SPLIT, s[c]);
    }
}

// The place of a vec4 of a block in [T, H, N / 4].
fn item_place(block: Block, i: u32) -> u32 {
    return (block.row + i / N4) * D4 + block.head * N4 + i % N4;
}

fn y4(i: u32) -> vec4f {
    return vec4f(block_y[4u * i], block_y[4u * i + 1u], block_y[4u * i + 2u], block_y[4u * i + 3u]);
}
