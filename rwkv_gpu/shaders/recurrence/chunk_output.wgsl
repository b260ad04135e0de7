// What becomes of y = S r of a chunk of rows      one workgroup per BLOCK rows and head
// needs recurrence/chunk: Block, value_place
// needs extra: prepare_output
// needs output: conclude, last_of
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, P / 4]

const ITEMS = BLOCK * P4;           // vec4s of a chunk

var<workgroup> block_y: array<vec4f, ITEMS>;

fn run(group: u32, lane: u32) {
    let row = group / H * BLOCK;
    if row >= step.rows {
        return;
    }
    let block = Block(row, min(BLOCK, step.rows - row), group % H, false);
    let last = last_of(block, lane);
    for (var i = lane; i < block.tokens * P4; i += WG) {
        block_y[i] = y[item_place(block, i)];
    }
    prepare_output(block, lane);
    conclude(last, block, lane);
}

fn y4(i: u32) -> vec4f { return block_y[i]; }

// Where a vec4 of a chunk lies in [T, H, P / 4].
fn item_place(block: Block, i: u32) -> u32 { return value_place(block, i / P4, i % P4); }
