// y is floats and nothing else.
// needs kernel: item_place
fn write_y(block: Block, i: u32, value: vec4f) { y[item_place(block, i)] = value; }
